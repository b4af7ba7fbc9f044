#!/bin/sh
# Builds the engines, the mutants and kdtr-conform with compilers alone, where there is no CMake.
#
#   scripts/build.sh [OUT]        OUT: folder for the results, build/scripts by default
#
# CXX, CXXFLAGS    C++20 compiler (c++) and further flags
# NVCC, ARCHS      CUDA compiler (nvcc; "" for no CUDA) and architectures ("80 90a 120")
# MUTANTS          "" for no library of planted faults
# JOBS             compilers at a time (number of cores)
set -eu
cd "$(dirname "$0")/.."
out=${1:-build/scripts}
cxx=${CXX:-c++}
nvcc=${NVCC-$(command -v nvcc || true)}
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' kdtr/__init__.py)
include="-Iengine/include -Iengine -Iconformance -I."
flags="-std=c++20 -O3 -DNDEBUG -fPIC -fvisibility=hidden -ffp-contract=off $include ${CXXFLAGS:-}"
mkdir -p "$out/objects"
todo=$out/commands
: >"$todo"

# compile NAME BACKEND FILES...: queue the compilation of files; objects_NAME collects results.
compile() {
  name=$1 backend=$2
  shift 2
  list= header=$out/objects/$backend.h
  # A header, for a quoted -D does not survive xargs.
  cat >"$header" <<END
#define KDTR_BACKEND "$backend"
#define KDTR_NAME "kdtr-$backend"
#define KDTR_VERSION "$version"
#define KDTR_BUILD "$cxx, scripts/build.sh"
END
  for file in "$@"; do
    [ -e "$file" ] || continue
    object="$out/objects/$name.$(echo "$file" | tr / _).o"
    list="$list $object"
    case $file in
      *.cu) echo "$nvcc $gencode -std=c++20 -O1 -Xcompiler=-fPIC,-fvisibility=hidden $include -c $file -o $object" ;;
      *) echo "$cxx $flags -include $header -c $file -o $object" ;;
    esac >>"$todo"
  done
  eval "objects_$name=\$list"
}

gencode=
for arch in ${ARCHS:-80 90a 120}; do
  # As in cmake/KdtrCuda.cmake: sm_120 is assembled from what is compiled for sm_80.
  from=$arch
  [ "$arch" != 120 ] || from=80
  gencode="$gencode -gencode=arch=compute_$from,code=sm_$arch"
done

compile cpu cpu engine/src/engine.cpp engine/kernels/cpu/*.cpp engine/model/*.cpp engine/model/cpu/*.cpp
[ -z "${MUTANTS-yes}" ] || compile mutants mutants conformance/mutants/*.cpp
compile conform judge conformance/*.cpp
if [ -n "$nvcc" ]; then
  compile cuda cuda engine/src/engine.cpp engine/kernels/cuda/*.cu engine/kernels/cuda/detail/*.cu engine/model/*.cpp engine/model/cuda/*.cu
else
  echo "CUDA kernels: off, nvcc was not found"
fi

xargs -P "$jobs" -I{} sh -c 'echo "$1" && $1' _ {} <"$todo"

hide="-Xlinker --version-script=cmake/package/exports.map"
for name in cpu mutants; do
  eval "objects=\${objects_$name:-}"
  [ -z "$objects" ] || $cxx -shared $hide $objects -o "$out/libkdtr_$name.so"
done
if [ -n "${objects_cuda:-}" ]; then
  $nvcc -shared -cudart static $hide $objects_cuda -ldl -o "$out/libkdtr_cuda.so"
fi
[ -z "$objects_conform" ] || $cxx -rdynamic $objects_conform -pthread -ldl -o "$out/kdtr-conform"
echo "built in $out: $(ls "$out" | grep -E '^(lib|kdtr)' | tr '\n' ' ')"
