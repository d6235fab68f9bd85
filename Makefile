# Each target does its own set-up: on a fresh machine `make train` or `make test` is the only command.
#   make train [CONFIG=cartpole_ppo] [ARGS='seed=1']     train a bundled config
#   make test  [PYTEST_ARGS='-k gae']                    the test suite, but for the tests marked long
#   make test-fast                                       without those marked slow, two cases of each at most
#   make test-long                                       the tests marked long: training, processes, compilers
#   make gpu                                             what needs a GPU: its tests, then its measurements
#   make docs                                            the documentation as a site, into build/site
#   make lint | make bench | make clean

PYTHON ?= python3
VENV ?= .venv
CONFIG ?= cartpole_ppo
ARGS ?=
PYTEST_ARGS ?=
CONSTRAINTS ?= constraints.txt

BIN := $(VENV)/bin
# Stamps: newer than setup.py, constraints.txt and the C sources means nothing to install.
NATIVE := $(wildcard zoo/backend/native/*.c zoo/backend/native/*.h zoo/backend/native/*.inc)
CORE := $(VENV)/.installed-core
TEST := $(VENV)/.installed-test
DOCS := $(VENV)/.installed-docs
DEV := $(VENV)/.installed-dev
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q -c $(CONSTRAINTS)

# A virtual environment names its own folder and its Python: where the Python is gone, or zoo was installed from a
# folder that this is not (any more), $(VENV) is made anew.
PLACE := import os, zoo; assert os.path.samefile(os.path.dirname(zoo.__file__), "zoo")
RUNS = $(BIN)/python -I -c '' && { [ ! -e $(CORE) ] || $(BIN)/python -I -c '$(PLACE)'; }
ANEW := $(shell [ ! -e $(VENV)/pyvenv.cfg ] || { $(RUNS); } 2>/dev/null || echo anew)

.DEFAULT_GOAL := train
.PHONY: train test test-fast test-long gpu docs lint bench clean anew

train: $(CORE)
	$(BIN)/zoo train $(CONFIG) $(ARGS)

# One thread per worker: two workers with two threads each fight over the cores. The long tests wait for processes a quarter
# of their time, so there are three. Without bytecode each of them, and each process that they start, compiles what it imports.
SUITE = env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist worksteal

test: $(DEV)
	$(SUITE) -n 2 -m 'not long' $(PYTEST_ARGS)

test-fast: $(TEST)
	$(SUITE) -n 2 -m 'not long and not slow' --few $(PYTEST_ARGS)

test-long: $(DEV)
	$(SUITE) -n 3 -m long $(PYTEST_ARGS)

gpu: $(TEST)
	$(BIN)/python -m pytest --gpu $(PYTEST_ARGS)
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/device.py

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo 'build/site/index.html'

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy zoo

bench: $(DEV)
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/learning.py
	$(BIN)/python benchmarks/kernels.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	rm -f zoo/backend/native/_native*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

anew:
	@echo '$(VENV) was made elsewhere, or its Python is gone: it is made anew'

$(BIN)/python: $(ANEW)
	@command -v $(PYTHON) >/dev/null || { echo "make: no '$(PYTHON)' found; install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "make: '$(PYTHON)' is $$($(PYTHON) --version 2>&1), zoo needs Python 3.10 or newer; name one: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: '$(PYTHON)' cannot create virtual environments; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(if $(ANEW),--clear )$(VENV) || { rm -rf $(VENV); exit 1; }

# torch first and alone: it is by far the largest, and an interrupted set-up then finds it installed.
$(CORE): setup.py $(CONSTRAINTS) $(NATIVE) $(ANEW) | $(BIN)/python
	@echo 'installing zoo into $(VENV) (first time: some minutes, mostly torch)'
	$(PIP) torch
	$(PIP) -e .
	@touch $@

$(TEST): setup.py $(CONSTRAINTS) $(NATIVE) $(ANEW) | $(BIN)/python
	@echo 'installing zoo and what its fast tests need into $(VENV) (first time: some minutes, mostly torch)'
	$(PIP) torch
	$(PIP) -e '.[test]'
	@touch $(CORE) $@

$(DOCS): setup.py $(CONSTRAINTS) $(NATIVE) $(ANEW) | $(BIN)/python
	@echo 'installing zoo and what builds its documentation into $(VENV) (first time: some minutes, mostly torch)'
	$(PIP) torch
	$(PIP) -e '.[docs]'
	@touch $(CORE) $@

$(DEV): setup.py $(CONSTRAINTS) $(NATIVE) $(ANEW) | $(BIN)/python
	@echo 'installing zoo and its development tools into $(VENV) (first time: some minutes, mostly torch)'
	$(PIP) torch
	$(PIP) -e '.[box2d,mujoco,atari,minatar,procgen,dev]'
	@touch $(CORE) $(TEST) $(DOCS) $@
