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

install(FILES include/cleave.h TYPE INCLUDE)
install(TARGETS ${libraries} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS cleave-cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

if(DEFINED SKBUILD_SCRIPTS_DIR)
	set(CLEAVE_SCRIPTS_DIR ${SKBUILD_SCRIPTS_DIR})
endif()
install(TARGETS ${package_targets} LIBRARY DESTINATION cleave COMPONENT python EXCLUDE_FROM_ALL)
install(TARGETS cleave-cli RUNTIME DESTINATION ${CLEAVE_SCRIPTS_DIR} COMPONENT python EXCLUDE_FROM_ALL)
install(DIRECTORY python/cleave/ DESTINATION cleave COMPONENT python EXCLUDE_FROM_ALL
	FILES_MATCHING PATTERN "*.py" PATTERN "*.pyi" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)
