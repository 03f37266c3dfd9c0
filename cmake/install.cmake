# Two ways to install:
#
#   cmake --install build --prefix P                       include/, lib/, bin/ under P: for C programs
#   cmake --install build --prefix P --component python    the package: P/cleave/ and the command line; `make` and
#                                                          `pip install .` (scikit-build-core) use this one
#
# What lies under P may be moved as a whole: cleave.pc, cleave-core.pc and the CMake package find the rest from where
# they are. No library knows the folder it was built in: libraries look for each other beside themselves, and for torch
# beside the package (../torch/lib) and in `cleave-libtorch`, a link that lies beside them and that whoever moves them to
# another machine points at the libtorch there.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(rpath "$ORIGIN" "$ORIGIN/../torch/lib" "$ORIGIN/cleave-libtorch")
# What `cleave` becomes to run plans lies in <prefix>/libexec/cleave, where `cleave` looks, and finds torch from there.
if(TARGET cleave-torch-cli)
	set(python_lib "$ORIGIN/../../lib/python${Python_VERSION_MAJOR}.${Python_VERSION_MINOR}/site-packages")
	set_target_properties(cleave-torch-cli PROPERTIES INSTALL_RPATH
		"$ORIGIN;$ORIGIN/../../${CMAKE_INSTALL_LIBDIR};${python_lib}/cleave")
endif()
# The same paths in build/ and where it is installed: CMake would make room for others by empty entries, and an empty
# entry is the working directory.
set(package_targets cleave-core)
foreach(target cleave _native)
	if(TARGET ${target})
		set_target_properties(${target} PROPERTIES INSTALL_RPATH "${rpath}")
		list(APPEND package_targets ${target})
	endif()
endforeach()
foreach(target cleave _native cleave-torch-cli)
	if(TARGET ${target})
		set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON)
	endif()
endforeach()
if(DEFINED torch_lib_dir)
	file(CREATE_LINK ${torch_lib_dir} ${CMAKE_BINARY_DIR}/cleave-libtorch SYMBOLIC)
endif()

# ---- for C programs ----------------------------------------------------------------------------------------------
install(FILES include/cleave.h TYPE INCLUDE)
install(TARGETS cleave-cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${CMAKE_BINARY_DIR}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
if(TARGET cleave-torch-cli)
	install(TARGETS cleave-torch-cli RUNTIME DESTINATION libexec/cleave)
endif()

set(environment_dir ${CLEAVE_SCRIPTS_DIR}/..)
# Each library is a component of the CMake package, with its own file of targets, and a pkg-config file.
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cleave)
file(RELATIVE_PATH pc_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" pc_prefix ${pc_prefix})
file(RELATIVE_PATH pc_include ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_FULL_INCLUDEDIR})

function(install_library target component description)
	set_target_properties(${target} PROPERTIES EXPORT_NAME ${component})
	install(TARGETS ${target} EXPORT cleave-${component}
		LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
		INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
	install(EXPORT cleave-${component} NAMESPACE cleave:: FILE cleave-${component}-targets.cmake
		DESTINATION ${package_dir})
	set(name ${target})
	set(libs "-l${target} ${ARGN}")
	string(STRIP "${libs}" libs)
	configure_file(cmake/cleave.pc.in ${target}.pc @ONLY)
	install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${target}.pc DESTINATION ${pkgconfig_dir})
endfunction()

install_library(cleave-core core "Plans of PyTorch models: read, look at, cut; without torch")
if(TARGET cleave)
	# A program links without looking into torch, and without a CUDA that torch may want: the loader finds them.
	set(link_option -Wl,--allow-shlib-undefined)
	target_link_options(cleave INTERFACE ${link_option})
	install_library(cleave cleave "Plans of PyTorch models: read, cut, run; with libtorch" ${link_option})
	install(FILES ${CMAKE_BINARY_DIR}/cleave-libtorch TYPE LIB)
endif()

if(PROJECT_VERSION_MAJOR EQUAL 0) # as the soname
	set(compatibility SameMinorVersion)
else()
	set(compatibility SameMajorVersion)
endif()
write_basic_package_version_file(cleave-config-version.cmake COMPATIBILITY ${compatibility})
configure_package_config_file(cmake/cleave-config.cmake.in cleave-config.cmake INSTALL_DESTINATION ${package_dir}
	NO_SET_AND_CHECK_MACRO)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/cleave-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/cleave-config-version.cmake
	DESTINATION ${package_dir})

# ---- the Python package ------------------------------------------------------------------------------------------
if(DEFINED SKBUILD_SCRIPTS_DIR)
	set(CLEAVE_SCRIPTS_DIR ${SKBUILD_SCRIPTS_DIR})
	set(environment_dir ${SKBUILD_DATA_DIR})
endif()
install(TARGETS ${package_targets} LIBRARY DESTINATION cleave COMPONENT python EXCLUDE_FROM_ALL)
install(TARGETS cleave-cli RUNTIME DESTINATION ${CLEAVE_SCRIPTS_DIR} COMPONENT python EXCLUDE_FROM_ALL)
if(TARGET cleave AND NOT DEFINED SKBUILD) # a wheel finds the torch of the environment it is installed into
	install(FILES ${CMAKE_BINARY_DIR}/cleave-libtorch DESTINATION cleave COMPONENT python EXCLUDE_FROM_ALL)
endif()
install(DIRECTORY ${CMAKE_BINARY_DIR}/man/ DESTINATION ${environment_dir}/share/man/man1
	COMPONENT python EXCLUDE_FROM_ALL)
if(TARGET cleave-torch-cli)
	set(torch_cli_dir ${environment_dir}/libexec/cleave)
	if(DEFINED SKBUILD)
		set(torch_cli_dir cleave)
	endif()
	install(TARGETS cleave-torch-cli RUNTIME DESTINATION ${torch_cli_dir} COMPONENT python EXCLUDE_FROM_ALL)
endif()
install(DIRECTORY python/cleave/ DESTINATION cleave COMPONENT python EXCLUDE_FROM_ALL
	FILES_MATCHING PATTERN "*.py" PATTERN "*.pyi" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)
