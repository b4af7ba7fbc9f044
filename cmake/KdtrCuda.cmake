# CUDA is used when nvcc is found. The runtime is linked statically, so that libkdtr_cuda.so needs
# the driver only, and only when it runs.
set(KDTR_HAVE_CUDA OFF)
if(NOT KDTR_CUDA STREQUAL "OFF")
  # sm_120 is assembled from what is compiled for sm_80: one compilation less of each file.
  set(also)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80 90a-real)
    set(also 120)
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20) # CMake 3.25.1 does not know it
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    # -O is for the host's part alone, which only checks calls and launches.
    string(REPLACE "-O3" "-O1" CMAKE_CUDA_FLAGS_RELEASE "${CMAKE_CUDA_FLAGS_RELEASE}")
    if(also)
      string(APPEND CMAKE_CUDA_FLAGS " --generate-code=arch=compute_80,code=sm_${also}")
    endif()
    set(KDTR_HAVE_CUDA ON)
    message(STATUS "CUDA kernels: on, nvcc ${CMAKE_CUDA_COMPILER_VERSION}, architectures "
                   "${CMAKE_CUDA_ARCHITECTURES} ${also}")
    # Nothing here links to cuBLAS: bf16 products of many tokens load it when first needed, by its
    # name, or from where it is found now: the toolkit, or the package nvidia-cublas.
    file(GLOB wheels "$ENV{VIRTUAL_ENV}/lib/python3*/site-packages/nvidia/*/lib")
    find_library(KDTR_CUBLAS NAMES libcublas.so.13 libcublas.so.12
                 HINTS "${CMAKE_CUDA_COMPILER_TOOLKIT_LIBRARY_ROOT}/lib64" PATHS ${wheels})
    set(KDTR_CUBLAS_FOUND "")
    if(KDTR_CUBLAS)
      set(KDTR_CUBLAS_FOUND "${KDTR_CUBLAS}")
      message(STATUS "cuBLAS: ${KDTR_CUBLAS}, loaded when first needed")
    else()
      message(STATUS "cuBLAS: not found; without it at run time either, this project's kernels "
                     "do all products")
    endif()
  elseif(KDTR_CUDA STREQUAL "ON")
    message(FATAL_ERROR "KDTR_CUDA: nvcc not found, want nvcc on PATH or -DCMAKE_CUDA_COMPILER=...")
  else()
    message(STATUS "CUDA kernels: off, nvcc was not found")
  endif()
else()
  message(STATUS "CUDA kernels: off, KDTR_CUDA=OFF")
endif()
