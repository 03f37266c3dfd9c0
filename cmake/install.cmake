# Two ways to install:
#
#   cmake --install build --prefix P                       include/, lib/, bin/ under P: for C programs
#   cmake --install build --prefix P --component python    the package: P/cleave/ and the command line; `make` and
#                                                          `pip install .` (scikit-build-core) use this one
#
# Libraries find each other beside themselves, and torch beside the package. Outside of wheels, which may be built
# in one environment and used in another, they also know the torch they were built with.
include(GNUInstallDirs)

set(libraries cleave-core)
if(TARGET cleave)
	list(APPEND libraries cleave)
endif()
set(package_targets ${libraries})
if(TARGET _native)
	list(APPEND package_targets _native)
endif()

set(rpath "$ORIGIN" "$ORIGIN/../torch/lib")
if(DEFINED torch_lib_dir AND NOT DEFINED SKBUILD)
	list(APPEND rpath ${torch_lib_dir})
endif()
set_target_properties(${package_targets} PROPERTIES INSTALL_RPATH "${rpath}")
# What `cleave` becomes to run plans lies in <prefix>/libexec/cleave, where `cleave` looks, and finds torch from there.
if(TARGET cleave-torch-cli)
	set(python_lib "lib/python${Python_VERSION_MAJOR}.${Python_VERSION_MINOR}/site-packages")
	set_target_properties(cleave-torch-cli PROPERTIES INSTALL_RPATH "${rpath};$ORIGIN/../../${python_lib}/torch/lib")
endif()

install(FILES include/cleave.h TYPE INCLUDE)
install(TARGETS ${libraries} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS cleave-cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${CMAKE_BINARY_DIR}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
if(TARGET cleave-torch-cli)
	install(TARGETS cleave-torch-cli RUNTIME DESTINATION libexec/cleave)
endif()

set(environment_dir ${CLEAVE_SCRIPTS_DIR}/..)
if(DEFINED SKBUILD_SCRIPTS_DIR)
	set(CLEAVE_SCRIPTS_DIR ${SKBUILD_SCRIPTS_DIR})
	set(environment_dir ${SKBUILD_DATA_DIR})
endif()
install(TARGETS ${package_targets} LIBRARY DESTINATION cleave COMPONENT python EXCLUDE_FROM_ALL)
install(TARGETS cleave-cli RUNTIME DESTINATION ${CLEAVE_SCRIPTS_DIR} COMPONENT python EXCLUDE_FROM_ALL)
install(DIRECTORY ${CMAKE_BINARY_DIR}/man/ DESTINATION ${environment_dir}/share/man/man1
	COMPONENT python EXCLUDE_FROM_ALL)
if(TARGET cleave-torch-cli)
	install(TARGETS cleave-torch-cli RUNTIME DESTINATION ${environment_dir}/libexec/cleave
		COMPONENT python EXCLUDE_FROM_ALL)
endif()
install(DIRECTORY python/cleave/ DESTINATION cleave COMPONENT python EXCLUDE_FROM_ALL
	FILES_MATCHING PATTERN "*.py" PATTERN "*.pyi" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)
