# Unit tests by pattern, and one test per case and backend, found when ctest runs: a new fixture
# needs no configure step.

# kdtr_test_programs(<pattern>): programs that tests in Python run, named as their file.
function(kdtr_test_programs pattern)
  kdtr_glob(sources ${pattern})
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM target)
    add_executable(${target} ${source})
    target_link_libraries(${target} PRIVATE kdtr_options)
  endforeach()
endfunction()

# kdtr_fuzz_programs(<pattern>): libFuzzer programs, which only Clang can make.
function(kdtr_fuzz_programs pattern)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    return()
  endif()
  kdtr_glob(sources ${pattern})
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM target)
    add_executable(${target} EXCLUDE_FROM_ALL ${source})
    target_link_libraries(${target} PRIVATE kdtr_options)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer,address,undefined)
    target_link_options(${target} PRIVATE -fsanitize=fuzzer,address,undefined)
  endforeach()
endfunction()

# kdtr_test_plugins(<pattern>): plug-ins in C for the judge's tests, libkdtr_<file>.so each.
function(kdtr_test_plugins pattern)
  kdtr_glob(sources ${pattern})
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM stem)
    add_library(kdtr_${stem} SHARED ${source})
    target_include_directories(kdtr_${stem} PRIVATE "${PROJECT_SOURCE_DIR}/engine/include")
    # Not hidden: in C the one symbol is exported by default.
    set_target_properties(kdtr_${stem} PROPERTIES C_VISIBILITY_PRESET default)
    target_link_libraries(kdtr_${stem} PRIVATE m)
  endforeach()
endfunction()

# kdtr_unit_tests(<part> <pattern>): each file is a program; it passes when it returns 0.
function(kdtr_unit_tests part pattern)
  kdtr_glob(sources ${pattern})
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM stem)
    set(target ${part}_${stem})
    add_executable(${target} ${source})
    target_link_libraries(${target} PRIVATE kdtr_options)
    target_compile_definitions(${target} PRIVATE KDTR_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                                 KDTR_BINARY_DIR="${PROJECT_BINARY_DIR}")
    if(part STREQUAL "engine" AND TARGET kdtr_cpu_objects)
      target_link_libraries(${target} PRIVATE kdtr_cpu_objects)
    elseif(TARGET kdtr_judge)
      target_link_libraries(${target} PRIVATE kdtr_judge)
    endif()
    string(REGEX REPLACE "_test$" "" name ${stem})
    add_test(NAME unit.${part}.${name} COMMAND ${target} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(unit.${part}.${name} PROPERTIES LABELS "unit" SKIP_RETURN_CODE 77)
  endforeach()
endfunction()

# kdtr_case_tests(<folders>): tests `<op>.<case>.<backend>` for the fixtures in these folders of the
# source tree, and `<op>.score` for the planted faults of each op.
function(kdtr_case_tests)
  if(NOT TARGET kdtr-conform)
    return()
  endif()
  list(TRANSFORM ARGN PREPEND "${PROJECT_SOURCE_DIR}/")
  set(backends cpu)
  if(TARGET kdtr_cuda)
    list(APPEND backends cuda)
  endif()
  set(include "${PROJECT_BINARY_DIR}/case_tests.cmake")
  file(CONFIGURE OUTPUT "${include}" @ONLY CONTENT [[
set(conform "@PROJECT_BINARY_DIR@/kdtr-conform")
set(folders "@ARGN@")
set(backends "@backends@")
include("@CMAKE_CURRENT_FUNCTION_LIST_DIR@/discover.cmake")
]])
  set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY TEST_INCLUDE_FILES "${include}")
endfunction()
