# The extension kdtr._core. In the source tree it lands beside the package's other modules, so that
# `python -m kdtr` finds it; the name carries the Python version, and git ignores it.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(
  COMMAND "${Python_EXECUTABLE}" -m pybind11 --cmakedir
  OUTPUT_VARIABLE pybind11_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
find_package(pybind11 2.13 CONFIG REQUIRED)
if(EXISTS "${PROJECT_SOURCE_DIR}/engine/python/module.cpp" AND TARGET kdtr_judge)
  pybind11_add_module(_core MODULE NO_EXTRAS engine/python/module.cpp)
  target_link_libraries(_core PRIVATE kdtr_judge)
  kdtr_hide_symbols(_core)
  if(NOT SKBUILD)
    set_target_properties(_core PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_SOURCE_DIR}/kdtr")
  endif()
  install(TARGETS _core LIBRARY DESTINATION kdtr)
endif()
install(FILES goldens/LOCK DESTINATION kdtr/data OPTIONAL)
install(DIRECTORY goldens/real DESTINATION kdtr/data OPTIONAL)
install(DIRECTORY engine/include/kdtr DESTINATION kdtr/include)
install(DIRECTORY cmake/package/ DESTINATION kdtr/cmake)
install(FILES engine/src/engine.cpp DESTINATION kdtr/cmake)
include(CMakePackageConfigHelpers)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/kdtrConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/kdtrConfigVersion.cmake" DESTINATION kdtr/cmake)
