# Everything a fresh clone needs: `make demo`, `make test`. Both share one .venv, made once and again when pyproject.toml changes.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test lint bench clean

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Torso needs Python 3.11 or newer, found " + sys.version.split()[0])'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "setting up .venv (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "torch>=2.11,<2.14"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@

demo: $(READY)
	@$(BIN)/torso compare fedavg fedper fedbabu examples/demo.toml

test: $(READY)
	$(BIN)/python -m pytest -n 2

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python bench/speed.py

clean:
	rm -rf .venv build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
