# ctest: tests/c/test_*.c (core), tests/c/torch_*.c (with libtorch), golden plans, examples, the fuzz corpus.
find_path(CMOCKA_INCLUDE_DIR cmocka.h)
find_library(CMOCKA_LIBRARY cmocka)

# One executable from one file; the objects are linked in, so that a test can call what the libraries hide.
function(cleave_test file)
	cmake_path(GET file STEM name)
	add_executable(${name} ${file})
	target_include_directories(${name} SYSTEM PRIVATE ${CMOCKA_INCLUDE_DIR})
	target_link_libraries(${name} PRIVATE ${CMOCKA_LIBRARY} ${ARGN} Threads::Threads)
	# GCC 12 sees dangling pointers that are none when helpers are inlined into a test.
	target_compile_options(${name} PRIVATE -Wall -Wextra -Wno-missing-field-initializers
		$<$<C_COMPILER_ID:GNU>:-Wno-dangling-pointer> $<$<BOOL:${CLEAVE_WERROR}>:-Werror>)
	set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
	add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
	set_tests_properties(${name} PROPERTIES TIMEOUT 300 
		ENVIRONMENT "CLEAVE_CACHE=off;XDG_STATE_HOME=/dev/null") # none finds what another left; no seals
endfunction()

if(CMOCKA_INCLUDE_DIR AND CMOCKA_LIBRARY)
	file(GLOB tests CONFIGURE_DEPENDS tests/c/test_*.c)
	if(NOT NGHTTP2_LIBRARY) # there is no server
		list(FILTER tests EXCLUDE REGEX "/test_(batch|server)[.]c$")
	endif()
	foreach(file ${tests})
		cleave_test(${file} cleave-core-objects)
	endforeach()
	# What a device needs, for tests on other processors.
	file(GLOB native_tests CONFIGURE_DEPENDS tests/c/test_native*.c)
	list(TRANSFORM native_tests REPLACE "^.*/|[.]c$" "")
	add_custom_target(native-tests DEPENDS ${native_tests} test_tensor test_payload)
	if(TARGET cleave)
		file(GLOB tests CONFIGURE_DEPENDS tests/c/torch_*.c)
		foreach(file ${tests})
			cleave_test(${file} cleave-objects cleave-core-objects)
		endforeach()
	endif()
else()
	message(STATUS "cmocka not found: tests of C are off")
endif()

find_package(Python 3.10 COMPONENTS Interpreter QUIET)
if(Python_Interpreter_FOUND)
	add_test(NAME plan_golden
		COMMAND ${Python_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/plan/run.py $<TARGET_FILE:cleave-cli>
		WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
endif()

if(TARGET cleave)
	file(GLOB examples CONFIGURE_DEPENDS examples/c/*.c)
	foreach(file ${examples})
		cmake_path(GET file STEM stem)
		add_executable(example_${stem} ${file})
		target_link_libraries(example_${stem} PRIVATE cleave)
		set_target_properties(example_${stem} PROPERTIES
			OUTPUT_NAME ${stem}
			RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/examples)
		cleave_own_code(example_${stem})
		add_test(NAME example_${stem} COMMAND example_${stem} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
		add_test(NAME example_${stem}_loads_no_python COMMAND ldd $<TARGET_FILE:example_${stem}>)
		set_tests_properties(example_${stem}_loads_no_python PROPERTIES
			PASS_REGULAR_EXPRESSION libtorch_cpu FAIL_REGULAR_EXPRESSION "libpython[0-9.]*[.]so|libtorch_python[.]so")
	endforeach()
endif()

# The examples on files: a whole model, and the same in two halves, each in a process of its own.
if(TARGET example_run_artifact)
	set(files ${CMAKE_SOURCE_DIR}/fuzz/corpus/artifact)
	set(boundary ${CMAKE_BINARY_DIR}/examples/boundary)
	add_test(NAME example_whole COMMAND example_run_artifact ${files}/whole)
	add_test(NAME example_prefix COMMAND example_run_artifact ${files}/prefix -b ${boundary})
	add_test(NAME example_suffix COMMAND example_run_suffix ${files}/suffix ${boundary})
	add_test(NAME example_traced COMMAND example_run_traced ${CMAKE_SOURCE_DIR}/tests/plan/models/traced.clv)
	set_tests_properties(example_traced PROPERTIES PASS_REGULAR_EXPRESSION
		"nodes 0 to 1, by example: operator by operator: there is no back end \"example\" here.*2 of them run on the tape")
	set_tests_properties(example_prefix PROPERTIES FIXTURES_SETUP example_boundary)
	set_tests_properties(example_suffix PROPERTIES FIXTURES_REQUIRED example_boundary)
	set_tests_properties(example_whole example_suffix PROPERTIES PASS_REGULAR_EXPRESSION "4891 14252 23613 32974")
endif()

# Fuzz targets over their seeds, without libFuzzer.
file(GLOB targets CONFIGURE_DEPENDS fuzz/fuzz_*.c fuzz/torch_*.c)
foreach(file ${targets})
	cmake_path(GET file STEM name)
	string(REGEX REPLACE "^(fuzz|torch)_" "" what ${name})
	if((name MATCHES "^torch_" AND NOT TARGET cleave-objects) OR (name MATCHES "^fuzz_(http|http2|grpc)$" AND NOT NGHTTP2_LIBRARY))
		continue()
	endif()
	add_executable(replay_${what} ${file} fuzz/replay.c)
	target_link_libraries(replay_${what} PRIVATE cleave-core-objects)
	if(name MATCHES "^torch_")
		target_link_libraries(replay_${what} PRIVATE cleave-objects)
	endif()
	set_target_properties(replay_${what} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
	cleave_own_code(replay_${what})
	file(GLOB seeds CONFIGURE_DEPENDS fuzz/corpus/${what}/*)
	add_test(NAME replay_${what} COMMAND replay_${what} ${seeds})
endforeach()

# libFuzzer refuses a dictionary with a line that is neither a comment nor a quoted word.
add_test(NAME fuzz_dictionaries WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}/fuzz
	COMMAND sh -c "! grep -Ev '^[[:space:]]*(#.*|([A-Za-z0-9_]+=)?\".+\")?$' *.dict")

# Pages for the tests in a browser (tests/browser/, run by tools/test.sh).
add_executable(page tests/browser/page.c)
target_link_libraries(page PRIVATE cleave-core-objects)
set_target_properties(page PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
cleave_own_code(page)

# What is installed, used from outside; what the libraries export. Sanitized libraries are not for others to link.
if(NOT CLEAVE_SANITIZE AND NOT CLEAVE_FUZZ)
	if(Python_Interpreter_FOUND)
		add_test(NAME abi COMMAND ${Python_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/abi/run.py ${CMAKE_BINARY_DIR}
			--cc ${CMAKE_C_COMPILER})
		add_test(NAME elf COMMAND ${Python_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/elf/run.py ${CMAKE_BINARY_DIR}
			$<$<BOOL:${CLEAVE_HAS_CET}>:--cet> COMMAND_EXPAND_LISTS)
	endif()
	find_program(PKG_CONFIG pkg-config)
	if(NOT PKG_CONFIG)
		message(STATUS "pkg-config not found: tests of programs that are built by it are off")
	endif()
	add_test(NAME outside COMMAND ${CMAKE_SOURCE_DIR}/tests/outside/run.sh ${CMAKE_BINARY_DIR}
		cut $<$<TARGET_EXISTS:cleave>:run> COMMAND_EXPAND_LISTS)
	set_tests_properties(outside PROPERTIES TIMEOUT 600)
endif()
