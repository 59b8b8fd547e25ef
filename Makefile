# Everything runs in .venv, made by pip from pyproject.toml and the tested versions in constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := install
.PHONY: help install eval test test-slow test-gpu gpu-check mutants check format floors bench clean

install: $(INSTALLED)
	@echo "Installed in $(VENV). Next: make eval, which runs nine jobs in twenty seconds and shows their table;"
	@echo "source $(BIN)/activate, so that isaaclab-arena and python are those of $(VENV); or make help."

help:
	@echo "make            install into $(VENV), and say what to do next"
	@echo "make eval       run jobs/quickstart.json on the CPU and show the table"
	@echo "make test       run the tests"
	@echo "make test-slow  run the tests that take more than a minute"
	@echo "make test-gpu   run the tests that need a CUDA device"
	@echo "make gpu-check  check and measure what needs a GPU, or say that there is none"
	@echo "make mutants    put small faults into a copy of the code, and say which of them the tests notice; half an hour"
	@echo "make floors     write the floors of the house into the documents, from the import contracts"
	@echo "make check      ruff, pyright and import-linter"
	@echo "make bench      throughput, recording, ranks, training, occupancy, merging, memory, GR00T, pipeline; about an hour"

# torch is asked for first and literally: the pin takes the build that suits the machine.
$(INSTALLED): pyproject.toml constraints.txt submodules/Isaac-GR00T/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; name one with make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable submodules/Isaac-GR00T
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,train,onnx]'
	@touch $@

eval: $(INSTALLED)
	$(BIN)/python -m isaaclab_arena.evaluation.eval_runner --eval_jobs_config jobs/quickstart.json

test: $(INSTALLED)
	$(BIN)/python -m pytest -m "not slow and not gpu" --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m "slow and not gpu"

test-gpu: $(INSTALLED)
	$(BIN)/python -m pytest -m gpu

# Says so and does nothing where there is no GPU. OPTIONS="--limit_s 540 --missing" does what fits into nine minutes,
# and the next time goes on.
gpu-check: $(INSTALLED)
	$(BIN)/python benchmarks/gpu_check.py $(OPTIONS)

# OPTIONS="--area storage", "--file grpo", "--processes 4" or "--sample 20" try fewer, or more at a time.
mutants: $(INSTALLED)
	$(BIN)/python -m tests.mutants $(OPTIONS)

floors: $(INSTALLED)
	$(BIN)/python -m tests.documentation.floors

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Each prints its table, and writes it into benchmarks/results where it says so. EnvPool takes part if it is installed,
# and mjlab with MJLAB_PYTHON=<python of its environment>, which benchmarks/training_throughput.py says how to make.
bench: $(INSTALLED)
	$(BIN)/python benchmarks/physics_throughput.py
	$(BIN)/python benchmarks/startup_time.py
	$(BIN)/python benchmarks/camera_throughput.py
	$(BIN)/python benchmarks/ant_throughput.py
	$(BIN)/python benchmarks/recording_overhead.py
	$(BIN)/python benchmarks/episode_writing.py
	$(BIN)/python benchmarks/two_ranks.py
	$(BIN)/python benchmarks/training_throughput.py $(if $(MJLAB_PYTHON),--mjlab_python $(MJLAB_PYTHON))
	$(BIN)/python benchmarks/training_ranks.py
	$(BIN)/python benchmarks/training_exchange.py
	$(BIN)/python benchmarks/training_evaluation.py
	$(BIN)/python benchmarks/slot_occupancy.py
	$(BIN)/python benchmarks/makespan.py
	$(BIN)/python benchmarks/merge_speed.py
	$(BIN)/python benchmarks/many_episodes.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/gr00t_policy.py
	$(BIN)/python benchmarks/pipeline.py

clean:
	rm -rf $(VENV) outputs build *.egg-info
