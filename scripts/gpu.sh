#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: build, certify every CUDA kernel, run the sanitizers, and
# record what ran where. Nothing is downloaded.
#   scripts/gpu.sh RECORD_DIR [certify] [sanitize] [bench]
set -euo pipefail
cd "$(dirname "$0")/.."
record=$1
shift
steps=${*:-certify sanitize}
mkdir -p "$record"
build=build/gpu
jobs=$(nproc)

cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DKDTR_CUDA=ON \
  -DCMAKE_CUDA_ARCHITECTURES="${KDTR_ARCH:-90a}" -DKDTR_TESTS=OFF \
  -DKDTR_PYTHON=ON -DPython_EXECUTABLE="$(command -v python3)" >"$record/configure.log"
cmake --build "$build" -j "$jobs" >"$record/build.log" || { tail -50 "$record/build.log"; exit 1; }
conform=$(find "$build" -name kdtr-conform -type f | head -1)
library=$(find "$build" -name 'libkdtr_cuda.so' | head -1)
export KDTR_LIB_DIR KDTR_BIN PYTHONPATH
KDTR_LIB_DIR=$(dirname "$library")
KDTR_BIN=$KDTR_LIB_DIR
PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}

{
  nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem --format=csv,noheader
  nvcc --version | tail -2 | head -1
  python3 --version
  if git rev-parse HEAD 2>/dev/null; then git status --short | wc -l | sed 's/$/ files differ from it/'; fi
  sha256sum "$library" | cut -d' ' -f1
} >"$record/machine.txt"
cat "$record/machine.txt"

# Certification and the four tools share the GPU: nothing is timed here.
certify() {
  python3 -m kdtr generate --tier full --jobs "$jobs" --out build/goldens >"$record/generate.log" 2>&1
  "$conform" certify --engine cuda --lock goldens/LOCK --out "$record" build/goldens \
    >"$record/certify.txt" 2>&1
  # The attention kernel of other GPUs, which sm_90a does not choose.
  KDTR_VERIFY_ATTN=mma "$conform" run --engine cuda --op verify_attn build/goldens \
    >>"$record/certify.txt" 2>&1
}
# Replayed in a graph over other contents, and each request alone. cuBLAS keeps no row's bits.
alone() {
  KDTR_CUBLAS=off "$conform" run --engine cuda --graph --invariant goldens >"$record/alone.txt" 2>&1
}
tokens() { python3 scripts/decode_recorded.py cuda >"$record/tokens.txt" 2>&1; }
sanitize() {
  compute-sanitizer --tool "$1" --error-exitcode 99 \
    "$conform" run --engine cuda --no-isolate goldens >"$record/$1.txt" 2>&1
}
report() {
  if wait "$2"; then echo "$1: clean"; else
    failed=1
    echo "$1: FAILED"
    grep -m 20 -A 4 -E '^(FAIL|CRASH|TIMEOUT)|^========= [A-Z]' "$record/$1.txt" || true
  fi
  tail -2 "$record/$1.txt"
}

declare -A running
case " $steps " in *" certify "*)
  for check in certify alone tokens; do
    $check &
    running[$check]=$!
  done
esac
case " $steps " in *" sanitize "*)
  for tool in memcheck racecheck initcheck synccheck; do
    sanitize "$tool" &
    running[$tool]=$!
  done
esac
for check in certify alone tokens memcheck racecheck initcheck synccheck; do
  [ -z "${running[$check]:-}" ] || report "$check" "${running[$check]}"
done

case " $steps " in *" bench "*)
  python3 benchmarks/bench.py --out "$record/bench.json" ${KDTR_BENCH:-} 2>&1 | tee "$record/bench.txt" ||
    failed=1
esac
exit "${failed:-0}"
