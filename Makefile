# Every target creates .venv when it is not there, and installs again only when pyproject.toml has changed.
#   PYTHON       the interpreter that .venv is made from (3.11 or newer)
#   TORCH_INDEX  a further package index for pip, to choose torch's CPU build
#   JOBS         how many test files run at once
#   SCALE, DATA  for `reproduce`: smoke, quick or paper; where the data lies

PYTHON ?= python3
JOBS ?= 2
SCALE ?= quick
DATA ?= datasets
TORCH_INDEX ?=

VENV := .venv
BIN := $(VENV)/bin
HASH := $(shell cksum < pyproject.toml | cut -d' ' -f1)
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
CORE := $(VENV)/nestlab-core.$(HASH)
TEST := $(VENV)/nestlab-test.$(HASH)
LAB := $(VENV)/nestlab-lab.$(HASH)
TORCHREC := $(BIN)/python -m nestlab.interop.install
# In the order of files: those with few tests, such as the notebooks, take longest and must not come last.
# Bytecode is kept even where the caller's environment forbids it: the tests start hundreds of processes.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help reproduce test test-full lab bench torchrec clean

help:
	@echo 'make reproduce [SCALE=quick] [DATA=datasets]   every notebook, results/index.html over all runs'
	@echo 'make test        ruff, pytest, every notebook at scale smoke'
	@echo 'make test-full   the same with the slow tests'
	@echo 'make lab         JupyterLab on the notebooks'
	@echo 'make bench       every benchmark'
	@echo 'make torchrec    torchrec and the fbgemm that belongs to this machine (the others run it too)'
	@echo 'make clean       caches and build files; keeps .venv, data and results'
	@echo 'Variables: PYTHON=$(PYTHON)  JOBS=$(JOBS)  TORCH_INDEX=<index with the CPU build of torch>'

$(BIN)/python:
	@echo 'creating $(VENV)'
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'Python 3.11 or newer is needed: make PYTHON=python3.11 …' >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)

# The stamps carry pyproject's checksum: a changed file has no stamp yet. One is touched only when pip has succeeded.
define install
@echo 'installing NestLab$(1) into $(VENV)'
@$(PIP) install $(INDEX) -e '.$(1)'
@rm -f $(basename $@).* && touch $@ $(CORE)
endef

$(CORE): | $(BIN)/python
	$(call install,)

$(TEST): | $(BIN)/python
	$(call install,[test])

$(LAB): | $(BIN)/python
	$(call install,[lab])

torchrec: $(CORE)
	@$(TORCHREC)

# Runs of a notebook beside the one with its own defaults: the quickstart on the second data set.
ALSO := 'notebooks/00_quickstart.ipynb -p dataset=kuairand'

reproduce: $(CORE)
	@$(TORCHREC)
	@failed=''; \
	for run in notebooks/*.ipynb $(ALSO); do \
	  status=0; \
	  $(BIN)/nestlab run $$run -p scale='$(SCALE)' -p data_root='$(DATA)' || status=$$?; \
	  if [ $$status -ge 128 ]; then exit $$status; fi; \
	  if [ $$status -ne 0 ]; then failed="$$failed, $$run"; fi; \
	done; \
	$(BIN)/nestlab results index; \
	if [ -n "$$failed" ]; then echo "failed:$${failed#,}" >&2; exit 1; fi; \
	$(BIN)/nestlab results list

test: $(TEST)
	@$(TORCHREC)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(PYTEST) -m 'not slow'

test-full: $(TEST)
	@$(TORCHREC)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(PYTEST)

lab: $(LAB)
	@$(TORCHREC)
	@$(BIN)/python -m ipykernel install --prefix $(VENV) --name python3 --display-name 'Python 3 (NestLab)' >/dev/null
	@$(BIN)/jupyter lab --notebook-dir=notebooks

bench: $(CORE)
	@$(TORCHREC)
	@set -e; for name in $$($(BIN)/nestlab bench); do echo "bench $$name"; $(BIN)/nestlab bench "$$name"; done

clean:
	@echo 'removing caches and build files (kept: $(VENV), datasets, results)'
	@find . -name $(VENV) -prune -o -name .git -prune -o \
	  \( -name __pycache__ -o -name .ipynb_checkpoints \) -type d -prune -exec rm -rf {} +
	@rm -rf .pytest_cache .ruff_cache .hypothesis build dist
