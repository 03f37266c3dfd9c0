# bench/*.c: one executable each, in <build>/bench. Built by the target `bench` only; `make bench` runs them.
file(GLOB files CONFIGURE_DEPENDS bench/*.c)
add_custom_target(bench)
foreach(file ${files})
	cmake_path(GET file STEM stem)
	add_executable(bench_${stem} EXCLUDE_FROM_ALL ${file})
	target_link_libraries(bench_${stem} PRIVATE cleave-objects cleave-core-objects)
	set_target_properties(bench_${stem} PROPERTIES
		OUTPUT_NAME ${stem}
		RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
	cleave_own_code(bench_${stem})
	add_dependencies(bench bench_${stem})
endforeach()
