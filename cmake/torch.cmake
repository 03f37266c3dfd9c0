# Torch as Python has it -> targets torch::cpu (libtorch_cpu, libc10) and torch::python (libtorch_python as well).
#
# The targets are made from the folders that Python's torch is in. find_package(Torch) is not used: on CUDA wheels
# it wants a CUDA toolkit on the machine, and we need none.
set(torch_oldest 2.11)

find_package(Python 3.10 COMPONENTS Interpreter OPTIONAL_COMPONENTS Development.Module)
if(NOT Python_Interpreter_FOUND)
	message(STATUS "Python 3.10 or newer not found: building the core and the command line only")
	return()
endif()

execute_process(
	COMMAND ${Python_EXECUTABLE} -c
		"import os, torch; print(torch.__version__, os.path.dirname(torch.__file__), int(torch.compiled_with_cxx11_abi()), sep=';')"
	RESULT_VARIABLE torch_failed
	OUTPUT_VARIABLE torch_facts
	ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
if(torch_failed)
	message(STATUS "torch not found by ${Python_EXECUTABLE}: building the core and the command line only")
	return()
endif()
list(GET torch_facts 0 torch_version)
list(GET torch_facts 1 torch_dir)
list(GET torch_facts 2 torch_abi)
if(torch_version VERSION_LESS torch_oldest)
	message(STATUS "torch ${torch_version} is older than ${torch_oldest}: building the core and the command line only")
	return()
endif()
message(STATUS "torch ${torch_version} in ${torch_dir}")
set(torch_lib_dir ${torch_dir}/lib)

function(torch_library name file)
	add_library(${name} SHARED IMPORTED)
	set_target_properties(${name} PROPERTIES IMPORTED_LOCATION ${torch_lib_dir}/${file})
endfunction()
torch_library(torch::c10 libc10.so)
torch_library(torch::libtorch_cpu libtorch_cpu.so)

# NDEBUG always: layouts in torch's headers differ without it, and the wheels are built with it.
add_library(torch::cpu INTERFACE IMPORTED)
target_include_directories(torch::cpu SYSTEM INTERFACE ${torch_dir}/include ${torch_dir}/include/torch/csrc/api/include)
target_compile_definitions(torch::cpu INTERFACE
	$<$<COMPILE_LANGUAGE:CXX>:NDEBUG>
	$<$<COMPILE_LANGUAGE:CXX>:_GLIBCXX_USE_CXX11_ABI=${torch_abi}>)
target_link_libraries(torch::cpu INTERFACE torch::libtorch_cpu torch::c10)
# CUDA wheels: libtorch_cpu wants libraries of CUDA that the loader finds, and the linker need not.
target_link_options(torch::cpu INTERFACE LINKER:--allow-shlib-undefined)

if(NOT Python_Development.Module_FOUND)
	message(STATUS "Python's headers not found: building without the Python extension")
	return()
endif()
torch_library(torch::libtorch_python libtorch_python.so)
add_library(torch::python INTERFACE IMPORTED)
target_link_libraries(torch::python INTERFACE torch::libtorch_python torch::cpu)
