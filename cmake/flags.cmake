# Language level, warnings, sanitizers. cleave_own_code(<target>) gives a target the rules for code we wrote.
set(CMAKE_C_STANDARD 11)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON) # POSIX functions; the language itself is C11
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

if(CLEAVE_SANITIZE)
	set(sanitize -fsanitize=${CLEAVE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
	add_compile_options(${sanitize})
	add_link_options(${sanitize})
	message(STATUS "Sanitizers: ${CLEAVE_SANITIZE}")
endif()

if(CLEAVE_FUZZ)
	add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -g)
	add_link_options(-fsanitize=address,undefined)
endif()

function(cleave_own_code target)
	target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-missing-field-initializers
		$<$<COMPILE_LANGUAGE:C>:-Wshadow -Wconversion>)
	if(CLEAVE_WERROR)
		target_compile_options(${target} PRIVATE -Werror)
	endif()
	target_link_libraries(${target} PRIVATE Threads::Threads)
endfunction()
