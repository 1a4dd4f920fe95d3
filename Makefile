# `make help` lists what there is. Everything runs in a virtual environment of this checkout, .venv, which the first
# target that needs it sets up. PYTHON chooses the interpreter it is made from: make test PYTHON=python3.12
PYTHON ?= python3
# More arguments for the target's main command: make test ARGS="-k seqlock -x"
ARGS ?=
MINUTES ?= 30

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# An interpreter, an environment or pip options of the caller's shell must not reach into .venv.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV
export PIP_DISABLE_PIP_VERSION_CHECK := 1

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet
SOURCES := $(wildcard src/shmenv/*.pyx src/shmenv/*.pxd src/shmenv/core/*.h)
COMPILED := $(patsubst src/shmenv/%.pyx,shmenv.%,$(wildcard src/shmenv/*.pyx))
# A later one waits for an earlier one: two builds in the same folder would tear each other's files.
BUILD := flock .build.lock $(BIN)/python setup.py -q build_ext --inplace

.PHONY: help setup demo test lint types bench bench-check callgrind compare frameworks conformance examples explore stress spin fuzz soak sanitize aarch64 sdist wheel clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: .venv/.built ## step 64 CartPoles and 8 Atari games next to Gymnasium's vector envs, with a table at the end
	@$(BIN)/python -m shmenv demo $(ARGS)

test: .venv/.built ## run the tests
	@$(BIN)/python tools/test.py $(ARGS)

lint: .venv/.dependencies ## check the style (ruff)
	@$(BIN)/ruff check $(ARGS) .

types: .venv/.built ## check the type hints (mypy strict) and the stubs of the compiled modules against the modules
	@$(BIN)/mypy src tests
	@MYPYPATH=bench $(BIN)/mypy bench examples tools
	@$(BIN)/python -m mypy.stubtest $(COMPILED)

bench: .venv/.built ## measure every part beside its plain alternative (pytest-benchmark)
	@$(BIN)/python -m pytest bench/bench_*.py -m "" --timeout=0 --benchmark-only \
	    --benchmark-columns=median,iqr,min,rounds $(ARGS)

bench-check: .venv/.built ## compare the ratios of now with the stored ones, within a wide margin (ARGS=--store stores them)
	@$(BIN)/python bench/check_ratios.py $(ARGS)

callgrind: .venv/.created ## count the core's instructions for an env step (valgrind), twice, and equal both times
	@bash tools/packages.sh valgrind:valgrind
	@$(BIN)/python bench/callgrind.py

compare: .venv/.built ## measure shmenv beside other libraries, all in one run; writes docs/performance.md
	@$(BIN)/python tools/peers.py
	@$(BIN)/python bench/compare.py $(ARGS)

frameworks: .venv/.built ## test the adapters of frameworks that come with torch, in environments of their own
	@$(BIN)/python tools/frameworks.py tests $(ARGS)

conformance: .venv/.built ## DI-engine's and Stable-Baselines3's own tests, with shmenv's classes in place of theirs
	@$(BIN)/python tools/conformance.py $(ARGS)

examples: .venv/.built ## run the examples that use a framework; each must reach its return (a few minutes)
	@$(BIN)/python tools/frameworks.py examples $(ARGS)

explore: .venv/.built ## explore the core's interleavings, with and without each memory order; prints the score
	@$(BIN)/python tests/core/mutate.py --full $(ARGS)

stress: .venv/.built ## long runs, without and with kills; prints how fast a death is noticed
	@$(BIN)/python -m pytest -m stress -s --timeout=0 $(ARGS)

spin: .venv/.created ## have SPIN prove a model of the semaphore with deaths, and refute it with each step taken away
	@bash tools/packages.sh spin:spin
	@$(BIN)/python tests/spin/check.py

fuzz: .venv/.built ## feed the decoders of what workers write with broken bytes, a minute each (atheris)
	@bash tools/fuzz.sh $(ARGS)

aarch64: .venv/.created ## build the core for aarch64 and run its threads there, in an emulator; no proof of ordering
	@bash tools/packages.sh "aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu libc6-dev-arm64-cross" qemu-aarch64:qemu-user
	@$(BIN)/python tests/core/build.py aarch64

soak: .venv/.built ## random faults under load for MINUTES (30), a line a minute; an error if anything drifts
	@PYTHONPATH=src:tests $(BIN)/python tests/soak.py $(MINUTES) $(ARGS)

sanitize: .venv/.built ## the tests again, with the compiled modules under ASan and UBSan, and the core under TSan
	@bash tools/sanitize.sh $(ARGS)

sdist: .venv/.dependencies ## build the source distribution into dist/
	@rm -rf dist
	@log=$$($(BIN)/python -m build --sdist --outdir dist . 2>&1) || { echo "$$log" >&2; exit 1; }
	@ls dist/*

wheel: sdist ## build the manylinux wheel from the sdist, and step an env with it in a fresh environment
	@bash tools/wheel.sh

clean: ## remove everything that was built, and .venv
	@rm -rf .venv build dist wheelhouse .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .cache .build.lock
	@rm -rf src/*.egg-info src/shmenv/*.so $(SOURCES:.pyx=.c)
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup: .venv/.built ## only set up .venv (each other target does so by itself)

# --- what the targets stand on ------------------------------------------------------------------------------------

.venv/.created:
	@command -v "$(PYTHON)" > /dev/null || { echo "shmenv needs Python 3.11 or newer, but there is no $(PYTHON)." \
	    "On Debian or Ubuntu: apt-get install python3 python3-dev python3-venv gcc" >&2; exit 1; }
	@"$(PYTHON)" tools/check_machine.py
	@echo "Setting up .venv (once, a minute or two) ..."
	@"$(PYTHON)" -m venv --clear .venv
	@touch $@

.venv/.dependencies: .venv/.created pyproject.toml
	@$(PIP) --upgrade "pip>=25.1" # the first pip that knows --group
	@$(PIP) --group dev
	@touch $@

# Installed in place, so that `import shmenv` works from everywhere and its metadata is there. The first build is part
# of that; BUILD then compiles what changed.
.venv/.installed: .venv/.dependencies setup.py
	@flock .build.lock $(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

.venv/.built: .venv/.installed $(SOURCES)
	@$(BUILD)
	@touch $@
