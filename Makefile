# The two commands: `make run` trains, `make test` checks everything. Both set themselves up.
# `make mutants` checks the tests: it breaks the code on purpose and sees that one of them fails.
# `make resolve` asks a plain package index what would be installed, for every Python that is here.
.PHONY: run test mutants resolve format clean
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

run: $(READY)
	$(BIN)/deltafl run --preset quickstart --out runs/quickstart --resume

test: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest

mutants: $(READY)
	$(BIN)/python tests/mutants/run.py

resolve:
	$(PYTHON) tests/install/resolve.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv runs build dist *.egg-info .*_cache .hypothesis

# What constraints.txt says decides which build of torch comes; see README, "Installing".
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)
