# Everything runs in .venv, which `make venv` fills from PyPI. Python, make, CMake and a C++
# compiler are all that must be there before.
PYTHON ?= python3
export PATH := $(CURDIR)/.venv/bin:$(PATH)
PRESET ?= release
JOBS ?= $(shell nproc)
NINJA = $(if $(shell command -v ninja),-G Ninja)
CLANG_FILES = $(shell git ls-files '*.cpp' '*.h' '*.cu' '*.cuh')
.PHONY: certify test venv build generate check score unit pytest lint format tidy headers clean

certify: build check ; python -m kdtr certify --tier full --out build/certificate
test: lint build generate unit pytest
venv: .venv/ready
.venv/ready: pyproject.toml ; $(PYTHON) -m venv .venv && pip install -q -U 'pip>=25.1' && pip install -q --group dev 'numpy>=2' 'click>=8.1' && touch $@
build: venv ; cmake --preset $(PRESET) $(NINJA) -DKDTR_PYTHON=ON -DPython_EXECUTABLE=$(CURDIR)/.venv/bin/python && cmake --build --preset $(PRESET) -j $(JOBS)
generate: venv ; python -m kdtr generate --tier full --jobs $(JOBS)
check: venv ; python -m kdtr generate --check --jobs $(JOBS)
unit: build ; ctest --preset $(PRESET) -j $(JOBS)
score: build ; ctest --preset $(PRESET) -L mutant
pytest: build ; pytest -n $(JOBS) $(PYTEST)
lint: venv ; ruff check && ruff format --check && mypy && lint-imports && clang-format --dry-run -Werror $(CLANG_FILES)
format: venv ; ruff check --fix ; ruff format && clang-format -i $(CLANG_FILES)
tidy: venv ; cmake --preset dev $(NINJA) && run-clang-tidy -quiet -p build/dev -j $(JOBS)
clean: ; rm -rf build .venv
