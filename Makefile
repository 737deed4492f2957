# `make help` lists the targets; each one sets up what it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := VENV=$(VENV) tools/uv pip
STAMP := $(VENV)/.installed
NATIVE := build/native
JOBS ?= $(shell nproc)
# The tests start Python thousands of times: byte code is written even where the environment forbids it.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup lock build check test test-unit test-soak lint format demo wheel test-sanitizers fuzz headers test-frameworks test-gpu test-kubernetes metrics clean

help: ## List the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

LOCKED := --quiet --require-hashes --requirement

$(STAMP): pyproject.toml requirements/installer.txt requirements/dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(LOCKED) requirements/installer.txt
	$(PIP) install --python $(VENV) $(LOCKED) requirements/dev.txt
	$(PIP) install --python $(VENV) --quiet --no-deps --no-build-isolation --editable . --config-settings wheel.cmake=false
	@touch $@

setup: $(STAMP) ## Create the virtual environment for development

LOCK := $(PIP) compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --custom-compile-command 'make lock'

lock: $(STAMP) ## Pin the newest dependencies that pyproject.toml allows in requirements/, with their hashes
	$(LOCK) --group installer --output-file requirements/installer.txt
	$(LOCK) --group numba --output-file requirements/numba.txt
	$(LOCK) --group sbom --output-file requirements/sbom.txt
	$(LOCK) --group dev --extra all pyproject.toml --output-file requirements/dev.txt
	$(LOCK) --extra all pyproject.toml --constraints requirements/dev.txt --output-file requirements/wheel.txt

FRAMEWORKS := build/frameworks
RECORD := benchmarks/results/frameworks-$(shell date +%F).txt
PACKAGES_torch := torch numpy
PACKAGES_jax := 'jax[cuda12]'
PACKAGES_tensorflow := 'tensorflow[and-cuda]'
# An environment of its own, since numba-cuda installs a hook that costs every start of its Python 30 ms.
PACKAGES_numba := --require-hashes --requirement requirements/numba.txt
PACKAGES_sbom := --require-hashes --requirement requirements/sbom.txt

$(FRAMEWORKS)/%/.installed: | $(STAMP)
	$(PYTHON) -m venv --without-pip $(@D)
	$(PIP) install --python $(@D) --quiet $(PACKAGES_$*)
	@touch $@

build: $(STAMP) ## Build the C libraries with this machine's compiler into src/pgpu/_native
	@$(BIN)/cmake -S . -B $(NATIVE) -G Ninja -DCMAKE_MAKE_PROGRAM="$$(realpath $(BIN))/ninja" -DPGPU_BUILD_TESTS=ON >$(VENV)/cmake.log || { cat $(VENV)/cmake.log; exit 1; }
	@$(BIN)/cmake --build $(NATIVE) -j $(JOBS)
	@$(BIN)/cmake --install $(NATIVE) --component pgpu --prefix src/pgpu/_native >/dev/null

# Runs a command line and prints how long it took, also if it fails.
timed = @began=$$(date +%s); $(1); code=$$?; echo "make $@: $$(($$(date +%s) - began)) s"; exit $$code

SMOKE := tests/system/test_cli_jobs.py 'tests/system/test_documented_commands.py::test_the_shell_blocks_of_a_page_run[README.md]'

check: build ## Run lint, types, unit and contract tests and a smoke of the command line (two minutes on two cores)
	$(call timed,$(MAKE) --no-print-directory lint && \
	    $(BIN)/pytest -q -n $$(($(JOBS) + 3)) --dist loadfile -m 'not soak' tests/contract $(SMOKE) tests/unit $(TEST_OPTIONS))

test: build $(FRAMEWORKS)/numba/.installed ## Run every test that this machine can run, except soaks; the others print why they are skipped
# In the folders' order, unit tests last: no core waits for a long file at the end. Three workers more than cores, since many tests wait.
	$(call timed,$(BIN)/pytest -n $$(($(JOBS) + 3)) --dist loadfile --no-loadscope-reorder -m 'not soak' $(TEST_OPTIONS))

test-unit: build ## Run the unit tests alone (half a minute on two cores)
	$(BIN)/pytest -q -n $(JOBS) -p no:schemathesis tests/unit $(TEST_OPTIONS)

test-soak: build ## Run the storms and other tests of many seconds, and all examples
	PGPU_ALL_EXAMPLES=1 $(BIN)/pytest -n $$(($(JOBS) + 3)) --dist loadfile -m 'soak or examples' $(TEST_OPTIONS)

lint: $(STAMP) ## Check style, types and the order of the rooms
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/generate_reference.py --check
	git ls-files '*.c' '*.h' | xargs $(BIN)/clang-format --dry-run --Werror

format: $(STAMP) ## Format Python and C
	$(BIN)/ruff format .
	git ls-files '*.c' '*.h' | xargs $(BIN)/clang-format -i

test-sanitizers: $(STAMP) $(FRAMEWORKS)/numba/.installed ## Run the native tests with ASan, UBSan and TSan in the C libraries
	$(BIN)/python tools/test_sanitizers.py

FUZZ_SECONDS ?= 60
FUZZ_EXAMPLES ?= 500

fuzz: build ## Fuzz the C readers for FUZZ_SECONDS with clang's libFuzzer, and a slice beside a bare driver with FUZZ_EXAMPLES sequences of calls
	@command -v clang >/dev/null || { echo 'error: clang is not installed' >&2; echo 'hint: apt-get install clang, or the package of your distribution with clang and its libFuzzer' >&2; exit 1; }
	@mkdir -p build/fuzz/found
	cd native/fuzz && clang -g -O1 -std=gnu11 -D_GNU_SOURCE -I../shim -I../monitor -I../bare -I../meter -I../include -I../api -I../launcher -I../oci \
	    -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all $$(cat sources.txt) -o ../../build/fuzz/readers
	build/fuzz/readers -max_total_time=$(FUZZ_SECONDS) -max_len=8192 -artifact_prefix=$(CURDIR)/build/fuzz/ $(CURDIR)/build/fuzz/found $(CURDIR)/native/fuzz/corpus
	PGPU_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/pytest tests/native/test_drivers_differ.py

headers: $(STAMP) ## Compare the tables of CUDA's and NVML's facts with the newest headers on PyPI
	@$(PYTHON) -m venv --clear build/headers && build/headers/bin/pip install --quiet --upgrade nvidia-cuda-runtime nvidia-nvml-dev-cu12 nvidia-ml-py
	@$(BIN)/python -m tools.generate_api --check --packages build/headers

demo: ## Run P1 with 25 jobs, without and with pgpu, on a simulated RTX 3090 (a minute; an environment of its own)
	@PYTHON='$(PYTHON)' tools/demo

test-frameworks: build $(FRAMEWORKS)/torch/.installed $(FRAMEWORKS)/jax/.installed $(FRAMEWORKS)/tensorflow/.installed ## Run PyTorch, JAX and TensorFlow (18 GB) in slices of the simulated GPU; record the result
	@mkdir -p $(dir $(RECORD))
	@printf 'Frameworks from PyPI in a slice of the simulated RTX 3090, %s, %s\n' "$$(date +%F)" "$$(uname -sr)" >$(RECORD)
	PGPU_FRAMEWORKS_RECORD="$(CURDIR)/$(RECORD)" PGPU_REQUIRED_MARKERS=frameworks $(BIN)/pytest tests/system/test_frameworks.py
	@cat $(RECORD)

test-gpu: build ## Run tests, workloads and PyTorch on this machine's NVIDIA GPU and record the result
	$(BIN)/python tools/test_gpu.py

test-kubernetes: build ## Run the tests on the cluster of KUBECONFIG, whose nodes run pgpu's driver
	PGPU_TEST_KUBECONFIG="$$KUBECONFIG" PGPU_REQUIRED_MARKERS=kubernetes $(BIN)/pytest tests/kubernetes $(TEST_OPTIONS)

wheel: $(STAMP) $(FRAMEWORKS)/sbom/.installed ## Build source archive, portable wheels for x86-64 and aarch64 (ziglang, glibc 2.17) and their SBOM (CycloneDX) into dist/
	@rm -rf dist build/man && mkdir dist && $(BIN)/python -m tools.generate_man build/man
	@$(BIN)/python -c 'from scikit_build_core.build import build_sdist; build_sdist("dist")' >dist/build.log
	@for machine in x86_64 aarch64; do \
	    PATH="$$(realpath $(BIN)):$$PATH" _PYTHON_HOST_PLATFORM=linux-$$machine $(BIN)/pip wheel --no-deps --no-build-isolation \
	        --config-settings cmake.define.PGPU_TARGET=$$machine --wheel-dir dist dist/gpuslice-*.tar.gz >>dist/build.log 2>&1 && \
	    $(BIN)/python tools/wheel_requirements.py dist/gpuslice-*-linux_$$machine.whl --retag || { cat dist/build.log; exit 1; }; \
	done
	@$(FRAMEWORKS)/sbom/bin/cyclonedx-py requirements requirements/wheel.txt --pyproject pyproject.toml --mc-type library --output-reproducible \
	    --output-file "$$(echo dist/gpuslice-*.tar.gz | sed 's/tar\.gz$$/cdx.json/')" 2>>dist/build.log || { cat dist/build.log; exit 1; }
	@rm dist/build.log

metrics: $(STAMP) ## Print figures about the form of the code; nothing fails on them
	@$(BIN)/python tools/metrics.py
	@$(BIN)/python tools/run_path.py

clean: ## Remove what was built
	rm -rf build dist src/pgpu/_native
