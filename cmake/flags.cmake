# Language level, warnings, sanitizers, what libraries export. cleave_own_code(<target>) gives a target the rules for
# code we wrote, cleave_library(<target>) those for libraries.
if(PROJECT_VERSION_MAJOR EQUAL 0)
	set(CLEAVE_SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
else()
	set(CLEAVE_SOVERSION ${PROJECT_VERSION_MAJOR})
endif()

add_compile_definitions(CLV_EXPERIMENTAL=) # our own code uses all of cleave.h
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

# Hardening, which tests/elf/run.py looks for in what was built. Sanitizers have checks of their own.
if(NOT CLEAVE_SANITIZE AND NOT CLEAVE_FUZZ)
	include(CheckCCompilerFlag)
	check_c_compiler_flag(-fcf-protection CLEAVE_HAS_CET) # x86 alone
	add_compile_options(-fstack-protector-strong $<$<BOOL:${CLEAVE_HAS_CET}>:-fcf-protection>
		$<$<CONFIG:Release,RelWithDebInfo,MinSizeRel>:-U_FORTIFY_SOURCE>
		$<$<CONFIG:Release,RelWithDebInfo,MinSizeRel>:-D_FORTIFY_SOURCE=2>)
	add_link_options(LINKER:-z,relro,-z,now,-z,noexecstack)
endif()

# A library that others link: it exports what cleave.h declares, also where templates of C++ would be seen. Before 1.0 a
# new minor version may break callers, so it is part of the soname. Wheels hold no links: there the name is plain.
function(cleave_library target)
	target_include_directories(${target} INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>)
	target_link_options(${target} PRIVATE LINKER:--version-script=${CMAKE_SOURCE_DIR}/cmake/exports.map)
	set_target_properties(${target} PROPERTIES LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/exports.map)
	if(NOT DEFINED SKBUILD)
		set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${CLEAVE_SOVERSION})
	endif()
endfunction()

function(cleave_own_code target)
	target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-missing-field-initializers
		$<$<COMPILE_LANGUAGE:C>:-Wshadow -Wconversion>)
	if(CLEAVE_WERROR)
		target_compile_options(${target} PRIVATE -Werror)
	endif()
	target_link_libraries(${target} PRIVATE Threads::Threads)
endfunction()
