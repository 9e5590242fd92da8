# `make train`, `make test` (shapes, stubs, small programs), `make test-ci` (as CI: also whole programs),
# both of what a change can affect and of the rest in turn, `make test-all`, `make suites` (environments
# of other packages, each with its package alone; one of them: `make suites SUITE=playground`),
# `make accelerator` (benchmark, short runs and tests on a GPU or TPU, as one record). Another Python:
# `make test PYTHON=python3.12`.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

# The day by which tests take turns (tests/rota.py), the same for all that one `make` runs.
ifndef JAXRL_DAY
export JAXRL_DAY := $(shell echo $$(($$(date +%s) / 86400)))
endif

# Slow tests lie side by side: in large pieces one worker would have them all.
SPREAD = --dist load --maxschedchunk 4

# What JAX is installed for by `make accelerator`: gpu or tpu.
ACCELERATOR ?= $(if $(shell command -v nvidia-smi),gpu,tpu)

.PHONY: train test test-ci test-all suites test-versions test-oldest test-newest accelerator lint docs clean

train: $(VENV)/.installed
	$(BIN)/jaxrl train ppo/cartpole --seeds 8

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest

test-ci: test
	$(BIN)/python -m pytest -m 'slow and not rest' $(SPREAD)

# Core and losses with the oldest and the newest dependencies that pyproject.toml allows.
test-versions: test-oldest test-newest

test-oldest: RESOLUTION = lowest-direct
test-newest: RESOLUTION = highest
test-oldest test-newest:
	$(PYTHON) -m venv --clear $(VENV)-$@
	$(VENV)-$@/bin/python -m pip install --quiet uv
	$(VENV)-$@/bin/uv pip install --quiet --python $(VENV)-$@/bin/python --resolution $(RESOLUTION) --editable '.[test]'
	$(VENV)-$@/bin/python -m pytest tests/core tests/losses

test-all: test-ci
	$(BIN)/python -m pytest -m rest $(SPREAD)

suites:
	$(PYTHON) tests/suites.py $(SUITE) --folder $(VENV)-suites

accelerator: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --editable '.[$(ACCELERATOR)]'
	$(BIN)/python experiments/accelerator.py

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

# The pages, into site/: `python -m http.server -d site` shows them (search needs a server).
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 JAX_PLATFORMS=cpu $(BIN)/python -m mkdocs build --strict --quiet

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "jaxrl needs Python 3.11 or newer; say which: make train PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build site *.egg-info .pytest_cache .ruff_cache .jax_cache
