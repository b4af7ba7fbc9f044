# How everything is compiled. Bits must not depend on the compiler's mood: no fast-math, and no
# contraction of a * b + c, which only some machines fuse.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()
find_package(Threads REQUIRED)

add_library(kdtr_options INTERFACE)
target_include_directories(
  kdtr_options INTERFACE "${PROJECT_SOURCE_DIR}/engine/include" "${PROJECT_SOURCE_DIR}/engine"
                         "${PROJECT_SOURCE_DIR}/conformance" "${PROJECT_SOURCE_DIR}")
target_link_libraries(kdtr_options INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
set(warnings -Wall -Wextra -Wshadow -Wconversion)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarms on "text" + std::string (GCC bug 105651); clang-tidy does not know the name.
  list(APPEND warnings -Wno-unknown-warning-option -Wno-restrict)
endif()
option(KDTR_WERROR "Warnings are errors" OFF)
if(KDTR_WERROR)
  list(APPEND warnings -Werror)
endif()
target_compile_options(
  kdtr_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${warnings};-ffp-contract=off>")
target_compile_definitions(
  kdtr_options
  INTERFACE KDTR_VERSION="${PROJECT_VERSION}"
            KDTR_BUILD="${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_BUILD_TYPE}")
set(KDTR_UNSANITIZED "")
if(KDTR_SANITIZE)
  set(KDTR_UNSANITIZED -fno-sanitize=all -O0 -g0)
  target_compile_options(
    kdtr_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${KDTR_SANITIZE}>
                           $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>
                           $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=undefined>)
  target_link_options(kdtr_options INTERFACE -fsanitize=${KDTR_SANITIZE})
endif()
