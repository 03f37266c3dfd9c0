# cleave-edge: one static program for a device, with the native engine and the commands run, bench and inspect. `make edge` builds
# it in a folder of its own (build/edge), without METIS, OpenSSL and zstd; with cmake/aarch64.cmake it is for ARM.
add_executable(cleave-edge ${cli_sources} $<TARGET_OBJECTS:cleave-core-objects> ${native_objects})
target_compile_definitions(cleave-edge PRIVATE CLEAVE_CLI_EDGE)
target_include_directories(cleave-edge PRIVATE include)
target_link_libraries(cleave-edge PRIVATE ${core_libraries})
target_link_options(cleave-edge PRIVATE -static-pie -s LINKER:--gc-sections)
if(NOT CMAKE_CROSSCOMPILING) # what the loader has to fill in takes a bit each, not 24 bytes
	include(CheckLinkerFlag)
	check_linker_flag(C LINKER:-z,pack-relative-relocs CLEAVE_HAS_RELR)
	target_link_options(cleave-edge PRIVATE $<$<BOOL:${CLEAVE_HAS_RELR}>:LINKER:-z,pack-relative-relocs>)
endif()
cleave_own_code(cleave-edge)
