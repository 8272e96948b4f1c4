# The front door: `make demo` and `make test` do everything on a fresh machine. `make help` lists the rest.

PYTHON ?= python3
VENV   ?= .venv
# How to install torch where the environment has none. Any torch >= 2.4 works; the CPU build is enough.
TORCH  ?= torch==2.13.0
PROMPT ?=
OUTPUT ?= outputs/demo
PYTEST ?=
# Whose torch sees the GPU; the package must be built (make build) in this checkout.
GPU_PYTHON ?= $(firstword $(wildcard $(VENV)/bin/python) $(PYTHON))
GPU_OUTPUT ?= outputs/gpu

BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
SOURCES := pyproject.toml $(shell find csrc -type f 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-slow test-gpu lint format build check-rocm clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- the two commands of the README ---------------------------------------------------------------------------------

demo: $(STAMP)  ## a video with and without the kernel, emulated; PROMPT="..." for your own, OUTPUT=DIR for elsewhere
	$(BIN)/moon-diffusers generate --emulate gfx942 $(if $(PROMPT),--prompt "$(PROMPT)") --output "$(OUTPUT)" --force

test: $(STAMP) lint  ## everything that decides whether a change is good: lint, types, all default tests
	$(BIN)/python -m pytest -n 2 $(PYTEST)

# --- while developing -----------------------------------------------------------------------------------------------

test-fast: $(STAMP)  ## the tests, stopping at the first failure
	$(BIN)/python -m pytest -n 2 -x $(PYTEST)

test-slow: $(STAMP)  ## also the sweeps that take minutes
	$(BIN)/python -m pytest -n 2 --run-slow $(PYTEST)

# Without $(STAMP): a machine with a GPU may have no network, and has its own torch.
test-gpu:  ## the kernels on the GPU of this machine, by the torch of GPU_PYTHON; writes GPU_OUTPUT/gpu-tests.json
	$(GPU_PYTHON) scripts/test_gpu.py --output "$(GPU_OUTPUT)" -- $(PYTEST)

lint: $(STAMP)  ## ruff, mypy --strict, clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict moon_diffusers
	find csrc -name '*.h' -o -name '*.hip' -o -name '*.cu' -o -name '*.cpp' | xargs $(BIN)/clang-format --dry-run --Werror

format: $(STAMP)  ## rewrite to the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	find csrc -name '*.h' -o -name '*.hip' -o -name '*.cu' -o -name '*.cpp' | xargs $(BIN)/clang-format -i

build: $(STAMP)  ## compile the kernels and the emulator again after a change in csrc/
	$(BIN)/python csrc/build/build.py

check-rocm: $(STAMP)  ## as root on Debian: the kernels under real hipcc, the binding against the real HIP library
	scripts/check_rocm.sh

clean:  ## forget the environment and all build products
	rm -rf $(VENV) moon_diffusers/_compiled outputs build dist

# The editable install compiles csrc/ by the wheel's own hook.
$(STAMP): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=23"
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[video,test,lint]"
	@touch $@
