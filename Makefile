# On a fresh machine with python3.11, pip and make, `make demo` or `make test` alone sets up and runs.
# Set-up happens once: the stamp is remade when the requirements change.

PYTHON ?= python3.11
VENV   ?= .venv
# `make test JOBS=1`, `make test TESTS=tests/data`, `make torture KILLS=500`, `make bench BENCH="--size-mib 64"`
JOBS   ?= 2
TESTS  ?= tests
KILLS  ?= 200
FLIPS  ?= 1000
SEEDS  ?= 20000
MIXTURES ?= 1000000
BENCH  ?=
DEMO   ?=
MINUTES ?= 15

BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
TORCH   := $(shell sed -n 's/^torch==//p' constraints.txt)
# One thread per process: the same float sums on every machine, and two test processes on two cores.
THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench bench-data torture simulate drill chaos docs upstream wheel-check clean clean-venv

help:
	@echo "make demo         train uninterrupted, with SIGKILLs, and over damage; compare the weights"
	@echo "make test         the whole suite        make check        ruff, mypy --strict, layers"
	@echo "make torture      SIGKILLs, lost tiers   make simulate     model check, 20,000 seeds, planted bugs"
	@echo "make bench-data   what reading costs"
	@echo "make bench        what saving costs      make wheel-check  build, install and import the wheel"
	@echo "make docs         the site, in .cache/site  make upstream  accelerate's own tests, with our Accelerator"
	@echo "make drill        faults, defences off   make chaos        a long run under random faults"

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet torch==$(TORCH)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[lightning,accelerate,transformers,s3,data,test,docs,dev]'
	touch $@

setup: $(STAMP)

demo: $(STAMP)
	$(THREADS) $(BIN)/python tools/demo.py $(DEMO)

test: $(STAMP)
	$(THREADS) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(TESTS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tools/traceability.py --check
	$(BIN)/python -m pytest tests/test_layers.py

bench: $(STAMP)
	$(THREADS) $(BIN)/python tests/bench/bench.py $(BENCH)

bench-data: $(STAMP)
	for part in order packing readers loader_cost resume; do \
		$(THREADS) $(BIN)/python -m tests.bench.$$part || exit 1; done

torture: $(STAMP)
	$(THREADS) $(BIN)/python -m tests.torture --kills $(KILLS)
	$(THREADS) $(BIN)/python -m tests.torture.tiers --kills $(KILLS)
	$(THREADS) $(BIN)/python -m tests.torture.bitflip --trials $(FLIPS)
	$(THREADS) $(BIN)/python -m tests.torture.data
	$(THREADS) $(BIN)/python -m tests.torture.mixture --configs $(MIXTURES)
	$(THREADS) $(BIN)/python -m tests.torture.cache

simulate: $(STAMP)
	$(BIN)/python -m durable_core.testing.modelcheck
	$(BIN)/python -m durable_core.testing.simulate --seeds $(SEEDS) --zombies 10000 --adoption 10000 --plants

drill: $(STAMP)
	$(THREADS) $(BIN)/durable drill all
	$(THREADS) $(BIN)/durable drill all --without-defence

chaos: $(STAMP)
	$(THREADS) $(BIN)/python -m durable_core.testing.drills.chaos --minutes $(MINUTES)

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

upstream: $(STAMP)
	$(THREADS) $(BIN)/python tools/upstream.py

wheel-check: $(STAMP)
	bash tools/wheel_check.sh $(VENV)

clean:
	rm -rf build dist .cache .demo runs lightning_logs .mypy_cache .ruff_cache .pytest_cache .hypothesis

clean-venv: clean
	rm -rf $(VENV)
