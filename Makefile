# Everything a newcomer needs: `make demo`, `make test`. Each sets itself up in .venv and is quick when run again.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
TRAIN  := $(VENV)/.train
READY  := $(VENV)/.ready
# One process for each core, each with one thread; the tests of a file stay together.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

FIGURES := decay wavelengths schedules grid resolution
KATEX   := 0.19.1

.PHONY: help setup demo test test-fast shapes lint katex figures bench sanitize clean
help:  ## Show this list.
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 14

setup: $(READY)  ## Make .venv with the pinned versions and the package itself.

# PyTorch comes first, from the constraints, so that nothing pulls another build of it;
# the package is built without isolation, so that its extension is compiled against that PyTorch.
$(TRAIN): pyproject.toml constraints.txt setup.py $(wildcard src/rotary/kernels/cpu*.cpp src/rotary/kernels/cpu*.h)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt setuptools wheel torch numpy
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e '.[train]'
	@touch $(TRAIN)

$(READY): $(TRAIN)
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $(READY)

demo: $(TRAIN)  ## Pre-train a small RoFormer on real text and show it at work (writes runs/demo).
	$(BIN)/rotary pretrain --output runs/demo --overwrite
	$(BIN)/rotary fill-mask runs/demo "Return a [MASK] of all the names in the module."

lint: $(READY)  ## Format, lint, types, import contract.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# KaTeX parses the formulas of the docs in a test; without npm that test says that it is skipped.
katex: $(READY)
	@command -v npm > /dev/null && test ! -d $(VENV)/katex/node_modules/katex \
	  && npm install --prefix $(VENV)/katex --no-save --no-audit --no-fund --loglevel=error katex@$(KATEX) || true

figures: $(READY)  ## Draw the figures of docs/theory anew.
	for figure in $(FIGURES); do $(BIN)/rotary plot $$figure --output docs/theory/figures/$$figure.svg || exit 1; done

test: lint katex  ## Everything that CI checks.
	$(PYTEST)
	$(MAKE) --no-print-directory shapes

shapes: $(READY)  ## The shapes in the annotations, checked at run time.
	$(PYTEST) tests/unit tests/laws --enforce-shapes -m "not slow and not compiles"

test-fast: lint  ## The same without the slow tests.
	$(PYTEST) -m "not slow"

$(VENV)/.bench: $(READY)
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e '.[bench]'
	@touch $(VENV)/.bench

bench: $(VENV)/.bench  ## Time everything beside its floors and peers (SUITE=rotate for one suite).
	$(BIN)/rotary bench $(SUITE)

# The sanitizer's own library must be the first in the process, Python's leaks are not ours, and the
# test with two gigabytes of address space would fill the sanitizer's shadow memory.
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
sanitize: $(READY)  ## Run the tests of the C++ kernel under the address sanitizer.
	rm -rf build/sanitize build/sanitize.tmp
	CFLAGS="$(SANITIZE)" CXXFLAGS="$(SANITIZE)" LDFLAGS="$(SANITIZE)" \
	$(BIN)/python setup.py -q build --build-base build/sanitize.tmp --build-lib build/sanitize
	grep -q __asan_init build/sanitize/rotary/kernels/_cpu*.so
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=build/sanitize \
	$(BIN)/python -m pytest -s -k "not two_to_the_31" \
	  $(addprefix tests/unit/test_kernels_, cpu.py tables.py running.py)

clean:  ## Remove the environment and what the tools left.
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache src/*.egg-info src/rotary/kernels/*.so
