# The two commands: `make run` trains, `make test` checks in five to ten minutes. Both set themselves up.
# `make test-all` checks everything, the slow tests too.
# `make federation` trains between processes of this machine: a server and twenty devices, over TLS.
# `make mutants` checks the tests: it breaks the code on purpose and sees that one of them fails.
# `make formal` has Spin search the models of docs/formal, in two minutes; it needs spin and gcc.
# `make fuzz MINUTES=10` hands hostile files to every parser, ten minutes to each.
# `make gpu` checks and measures on one GPU, within ten minutes; without one it rehearses, and says so.
# `make resolve` asks a plain package index what would be installed, for every Python that is here.
# `make docs` builds the documentation as a site, in build/docs; `make docs-links` asks the network about its links.
# Another version of Python: `make PYTHON=python3.12 run`. It makes the environment anew.
.PHONY: run test test-all federation docs docs-links mutants formal fuzz gpu resolve format clean
.NOTPARALLEL:
BIN := .venv/bin
# that of the environment, if it still runs
PYTHON ?= $(shell $(BIN)/python -c '' 2>/dev/null && echo $(BIN)/python || echo python3)
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
ifeq ($(VERSION),)
$(error PYTHON=$(PYTHON) does not run: name Python 3.11 or newer, as in `make PYTHON=python3.12 run`)
endif
CHOSEN := .venv/.python-$(VERSION)
TO_RUN := .venv/.sim
TO_CONNECT := .venv/.net
TO_TEST := .venv/.dev
TO_WRITE := .venv/.docs
TO_FUZZ := .venv/.fuzz

run: $(TO_RUN)
	$(BIN)/deltafl run --preset quickstart --out runs/quickstart --resume

federation: $(TO_CONNECT)
	$(BIN)/deltafl federation up --resume

test: $(TO_TEST)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy & $(BIN)/lint-imports; imports=$$?; wait $$! && exit $$imports
	$(BIN)/pytest -m "not slow"

test-all: test
	$(BIN)/pytest -m slow

# what the site shows comes from the code, so every page is read each time, and every warning is an error
SITE = $(BIN)/sphinx-build --fresh-env --fail-on-warning --keep-going --nitpicky --jobs auto --quiet docs
docs: $(TO_WRITE)
	$(SITE) build/docs
	@echo "open build/docs/index.html"

docs-links: $(TO_WRITE)
	$(SITE) build/docs-links --builder linkcheck

mutants: $(TO_TEST)
	$(BIN)/python tests/mutants/run.py

formal: $(TO_TEST)
	$(BIN)/python tests/formal/check_models.py

MINUTES ?= 2
fuzz: $(TO_FUZZ)
	$(BIN)/python tests/fuzz/fuzz_parsers.py --minutes $(MINUTES)

gpu: $(TO_TEST)
	$(BIN)/python tests/gpu/gpu_run.py --out build/gpu

resolve:
	$(PYTHON) tests/install/resolve.py

format: $(TO_TEST)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv runs build dist src/*.egg-info .*_cache .hypothesis

$(CHOSEN):
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed, and this is $(VERSION): name another, as in `make PYTHON=python3.12 run`")'
	$(PYTHON) -m venv --clear .venv
	touch $@

# What the package index offers decides which build of torch comes; see docs/how-to/install.md.
INSTALL = $(BIN)/python -m pip install --constraint constraints.txt --editable

$(TO_RUN): pyproject.toml constraints.txt $(CHOSEN)
	$(INSTALL) '.[sim]'
	touch $@

$(TO_CONNECT): pyproject.toml constraints.txt $(CHOSEN)
	$(INSTALL) '.[net]'
	touch $(TO_RUN) $@

$(TO_WRITE): pyproject.toml constraints.txt $(CHOSEN)
	$(INSTALL) '.[docs]'
	touch $(TO_RUN) $(TO_CONNECT) $@

$(TO_TEST): pyproject.toml constraints.txt $(CHOSEN)
	$(INSTALL) '.[dev]'
	touch $(TO_RUN) $(TO_CONNECT) $(TO_WRITE) $@

# only this needs atheris, which is there for Linux and Python 3.11 to 3.13
$(TO_FUZZ): $(TO_TEST)
	$(INSTALL) '.[dev,fuzz]'
	touch $@
