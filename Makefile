# Everything runs in .venv, which is filled from PyPI. Python, make, CMake and a C++ compiler are
# all that must be there before; nvcc and a GPU are used when they are.
PYTHON ?= python3
PRESET ?= release
JOBS ?= $(shell nproc)
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# One BLAS thread a process: several would spin for each other while the workers share the cores.
export OPENBLAS_NUM_THREADS ?= 1
CMAKE = cmake $(if $(shell command -v ninja),-G Ninja) -DPython_EXECUTABLE=$(CURDIR)/.venv/bin/python
FORMATTED = git ls-files '*.cpp' '*.h' '*.cu' '*.cuh'
.PHONY: certify test venv build generate check unit pytest slow score bench lint format asan tidy scripts docs ci clean

certify: build check ; python -m kdtr certify --tier full --jobs $(JOBS) --out build/certificate
test: lint build check unit pytest
ci: test asan tidy scripts slow
venv: .venv/ready
.venv/ready: pyproject.toml scripts/commands.py ; $(PYTHON) -m venv .venv && pip install -q -U 'pip>=25.1' && pip install -q --group dev 'numpy>=2' 'click>=8.1' && python scripts/commands.py && touch $@
build: venv ; $(CMAKE) --preset $(PRESET) -DKDTR_PYTHON=ON $(if $(KDTR_CUDA),-DKDTR_CUDA=$(KDTR_CUDA)) && cmake --build --preset $(PRESET) -j $(JOBS)
generate: venv ; python -m kdtr generate --tier full --jobs $(JOBS)
check: venv ; python -m kdtr generate --check --jobs $(JOBS)
unit: build ; ctest --preset $(PRESET) -j $(JOBS)
# By file: what a file compiles for its tests is then compiled once.
pytest: build ; KDTR_REQUIRE_ENGINE=1 pytest -n $(JOBS) --dist loadfile -m 'not slow'
slow: build ; KDTR_REQUIRE_ENGINE=1 pytest -n $(JOBS) --dist loadfile -m slow
lint: venv ; ruff check && ruff format --check && mypy && lint-imports && $(FORMATTED) | xargs clang-format --dry-run -Werror
format: venv ; ruff check --fix ; ruff format && $(FORMATTED) | xargs clang-format -i
asan: venv ; $(CMAKE) --preset asan && cmake --build --preset asan -j $(JOBS) && ctest --preset asan -j $(JOBS) -L unit
tidy: venv ; $(CMAKE) --preset dev && run-clang-tidy.py -quiet -p build/dev -j $(JOBS) '^(?!.*/(headers|broken)/)'
scripts: venv ; NVCC= MUTANTS= CXXFLAGS=-O1 scripts/build.sh build/scripts && build/scripts/kdtr-conform run --quiet --engine cpu goldens
score: build ; python -m kdtr score --jobs $(JOBS) --md build/separation_matrix.md --json build/separation_matrix.json
bench: build ; python -m kdtr bench kernels --out build/bench.json
docs: score ; NO_MKDOCS_2_WARNING=1 mkdocs build -q
clean: ; rm -rf build .venv
