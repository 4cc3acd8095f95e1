# Every target creates .venv and installs into it first, once.
.PHONY: help install train train-appo test test-all lint

BIN := .venv/bin
THREADS ?= 2
ARGS ?=
# All that `accelerate launch` would otherwise ask for, or warn about
LAUNCH := $(BIN)/accelerate launch --cpu --num_processes 1 --num_machines 1 --mixed_precision no \
	--dynamo_backend no --num_cpu_threads_per_process $(THREADS)

export VLLM_NO_USAGE_STATS := 1
export HF_HUB_DISABLE_TELEMETRY := 1

help:
	@echo "make train      train the tiny agent with ARPO on this machine's CPU (six minutes after installation; ARGS='--seed 2' adds options)"
	@echo "make train-appo the same with APPO (about six minutes)"
	@echo "make test       linters and the fast tests (at most 20 minutes)"
	@echo "make test-all   the same with the slow tests"
	@echo "make lint       ruff and mypy alone"
	@echo "make install    create .venv and install everything (a few minutes, 4 GB)"

install:
	@scripts/install.sh

train: install
	$(LAUNCH) examples/train_arpo.py --config configs/arpo_tiny_geo_cpu.yaml $(ARGS)

train-appo: install
	$(LAUNCH) examples/train_appo.py --config configs/appo_tiny_geo_cpu.yaml $(ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -m "not slow" $(ARGS)

test-all: lint
	$(BIN)/pytest $(ARGS)
