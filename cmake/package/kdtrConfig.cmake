# find_package(kdtr): headers, the judge, and a ctest test for each golden case.
#
#   find_package(kdtr REQUIRED)                # -Dkdtr_DIR="$(kdtr --cmake-dir)"
#   kdtr_add_plugin(mine mine.cpp)             # a plug-in of files that use kdtr/registry.h
#   kdtr_discover_fixtures(mine OPS argmax)    # tests mine.argmax.<case>
#
# Targets: kdtr::headers (C++20), kdtr::conform (the program). Works installed and from a source
# tree with a build.
cmake_minimum_required(VERSION 3.25)
get_filename_component(_kdtr_root "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
if(EXISTS "${_kdtr_root}/include/kdtr/plugin.h")
  set(kdtr_INCLUDE_DIR "${_kdtr_root}/include")
  set(kdtr_PLUGIN_SOURCE "${CMAKE_CURRENT_LIST_DIR}/engine.cpp")
  set(_kdtr_bin "${_kdtr_root}/bin")
else()
  get_filename_component(_kdtr_root "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
  set(kdtr_INCLUDE_DIR "${_kdtr_root}/engine/include")
  set(kdtr_PLUGIN_SOURCE "${_kdtr_root}/engine/src/engine.cpp")
  set(_kdtr_bin "${_kdtr_root}/build/release" "${_kdtr_root}/build/cuda" "${_kdtr_root}/build/dev")
endif()
find_program(kdtr_CONFORM kdtr-conform HINTS ENV KDTR_BIN PATHS ${_kdtr_bin} NO_DEFAULT_PATH
             DOC "The judge")
find_program(kdtr_PROGRAM kdtr DOC "The command line, which makes fixtures")
set(kdtr_EXPORTS "${CMAKE_CURRENT_LIST_DIR}/exports.map")
set(kdtr_DISCOVER "${CMAKE_CURRENT_LIST_DIR}/kdtrDiscover.cmake")

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  kdtr REQUIRED_VARS kdtr_CONFORM kdtr_INCLUDE_DIR VERSION_VAR kdtr_VERSION)
if(NOT kdtr_FOUND OR TARGET kdtr::headers)
  return()
endif()

add_library(kdtr::headers INTERFACE IMPORTED)
target_include_directories(kdtr::headers INTERFACE "${kdtr_INCLUDE_DIR}")
target_compile_features(kdtr::headers INTERFACE cxx_std_20)
add_executable(kdtr::conform IMPORTED)
set_target_properties(kdtr::conform PROPERTIES IMPORTED_LOCATION "${kdtr_CONFORM}")

# kdtr_add_plugin(<target> <sources>...): a plug-in lib<target>.so of kernels that register
# themselves, called by the target's name and the project's version. With a .cu source it is one for
# CUDA.
function(kdtr_add_plugin target)
  set(backend cpu)
  if("${ARGN}" MATCHES "\\.cu(;|$)")
    set(backend cuda)
  endif()
  add_library(${target} MODULE ${ARGN} "${kdtr_PLUGIN_SOURCE}")
  target_link_libraries(${target} PRIVATE kdtr::headers)
  target_compile_definitions(${target} PRIVATE KDTR_BACKEND="${backend}" KDTR_NAME="${target}"
                                               KDTR_VERSION="${PROJECT_VERSION}")
  # a * b + c stays two operations: exact ops must not depend on which machines fuse it.
  target_compile_options(
    ${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang,AppleClang>:-ffp-contract=off>)
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden)
  target_link_options(${target} PRIVATE "LINKER:--version-script=${kdtr_EXPORTS}")
endfunction()

# kdtr_discover_fixtures(<target> [OPS <op>...] [CASES <pattern>] [GOLDENS <folder>] [TIER <tier>]
#                        [PREFIX <text>] [TIMEOUT <seconds>] [ARGUMENTS <option>...])
# One ctest test `<prefix><op>.<case>` for each fixture, found when the target is built. Fixtures of
# OPS that are not in GOLDENS (by default `goldens` in the build folder) are made then, by `kdtr`.
# <target> is a plug-in, or the text of an --engine that is no target.
function(kdtr_discover_fixtures target)
  cmake_parse_arguments(arg "" "CASES;GOLDENS;TIER;PREFIX;TIMEOUT" "OPS;ARGUMENTS" ${ARGN})
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "kdtr_discover_fixtures: unknown arguments, got ${arg_UNPARSED_ARGUMENTS}")
  endif()
  foreach(pair "CASES|*" "GOLDENS|${CMAKE_BINARY_DIR}/goldens" "TIER|small" "PREFIX|${target}."
               "TIMEOUT|120")
    string(REPLACE "|" ";" pair "${pair}")
    list(GET pair 0 name)
    list(GET pair 1 default)
    if(NOT DEFINED arg_${name})
      set(arg_${name} "${default}")
    endif()
  endforeach()
  if(TARGET ${target})
    set(engine "$<TARGET_FILE:${target}>")
  else()
    set(engine "${target}")
  endif()
  list(JOIN arg_OPS "," ops) # a list would be torn apart on its way to the script
  list(JOIN arg_ARGUMENTS "," arguments)
  string(MAKE_C_IDENTIFIER "kdtr_${arg_PREFIX}${arg_CASES}" name)
  set(include "${CMAKE_CURRENT_BINARY_DIR}/${name}.cmake")
  set(command
      "${CMAKE_COMMAND}" "-Dinclude=${include}" "-Dconform=${kdtr_CONFORM}"
      "-Dkdtr=${kdtr_PROGRAM}" "-Dengine=${engine}" "-Dops=${ops}" "-Dcases=${arg_CASES}"
      "-Dgoldens=${arg_GOLDENS}" "-Dtier=${arg_TIER}" "-Dprefix=${arg_PREFIX}"
      "-Dtimeout=${arg_TIMEOUT}" "-Darguments=${arguments}" -P "${kdtr_DISCOVER}")
  if(TARGET ${target})
    add_custom_command(TARGET ${target} POST_BUILD COMMAND ${command} VERBATIM)
  else()
    add_custom_target(${name} ALL COMMAND ${command} VERBATIM)
  endif()
  # Until the target is built there is one failing test, as with gtest_discover_tests.
  file(WRITE "${include}.guard"
       "if(EXISTS \"${include}\")\n  include(\"${include}\")\nelse()\n"
       "  add_test(\"${arg_PREFIX}NOT_BUILT\" \"${target}\")\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${include}.guard")
endfunction()
