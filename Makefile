# The commands people and CI share. Nothing here calls apt or sudo, but what `kube-test` and
# `image-test` build first calls apt-get when it runs as root.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := gateway,engine,nixl,autoscaler,load,test,lint
# A pip index with another torch build; remembered, so that later targets keep that build.
TORCH_INDEX ?= $(shell cat $(VENV)/.torch-index 2>/dev/null)
STAMP := $(VENV)/.installed-$(shell { cat pyproject.toml constraints.txt; echo "$(TORCH_INDEX)"; } | cksum | cut -d' ' -f1)
SOURCES := services shared kernels tests baton_pd.py $(wildcard loadtest)
TESTS ?= tests
TEST_ARGS ?=
# Processes for the tests that may run at the same time; they wait for a third of theirs.
JOBS ?= $(shell echo $$(($$(nproc) + 1)))

# What `make load` loads, and how.
URL ?= http://127.0.0.1:8000
USERS ?= 16
TIME ?= 60s
SCENARIO ?= locustfile

# How long a campaign lasts, and what it draws.
CAMPAIGN = $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

# Scenarios that ask nothing but the API server and the gateways' Service.
PORTABLE := scaled_out or three_rollouts or do_not_start or without_prefill or redis_replaced

.DEFAULT_GOAL := help
.PHONY: help install demo check check-format check-lint check-types check-imports check-rules test redis-test clients load hand-overs chaos-ci soak fuzz transfers redis-ways restarts cancels overload fair-shares deadlines kv-pressure failpoints poison compile-kernels slow-link kill-campaign simulate measured-run stopped-worker chart kube-test scale-cycles image-test kind-test audit format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## install everything into .venv (TORCH_INDEX=<url> for another torch build)

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' || \
		{ echo "baton: error: $(PYTHON) is not Python 3.11 or 3.12; name one with PYTHON=..." >&2; exit 3; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "baton: error: Python's venv is missing: apt-get install python3-venv" >&2; exit 3; }
	@test -x $(BIN)/pip || { echo "baton: creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@if [ "$(TORCH_INDEX)" != "$$(cat $(VENV)/.torch-index 2>/dev/null)" ]; then \
		$(BIN)/pip uninstall --yes torch triton; fi
	@echo "baton: step 1 of 2: torch (a few hundred MB; several GB where the build has CUDA)"
	@grep -v '^triton==' constraints.txt > $(VENV)/constraints.txt
	$(BIN)/pip install -c $(VENV)/constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
		torch setuptools
	@echo "baton: step 2 of 2: everything else"
	@$(BIN)/python -m tests.rules.torch_build || cp constraints.txt $(VENV)/constraints.txt
	$(BIN)/pip install -c $(VENV)/constraints.txt --no-build-isolation -e '.[$(EXTRAS)]'
	@rm -f $(VENV)/.installed-*
	@echo "$(TORCH_INDEX)" > $(VENV)/.torch-index
	@touch $@

demo: install ## serve the demo model, stream one answer, show its trace, stop everything
	@$(BIN)/baton demo

check: ## format, lint, types, import contracts, budgets; no tests; reports all that is wrong
	@$(MAKE) --no-print-directory --keep-going check-format check-lint check-types check-imports check-rules

check-format: install
	$(BIN)/ruff format --check $(SOURCES)
check-lint: install
	$(BIN)/ruff check $(SOURCES)
check-types: install
	$(BIN)/mypy
check-imports: install
	$(BIN)/lint-imports
check-rules: install
	$(BIN)/python -m tests.rules

test: install ## run all tests; what needs a GPU, promtool or a newer Redis than the bundled one may be skipped
	@$(BIN)/python -m tests.support.redis_server
	@status=0; export SKIP_LEDGER=$$(mktemp); \
	for part in "-m 'not alone' -n $(JOBS) --dist loadfile" "-m alone"; do \
		echo "$(BIN)/python -m pytest --timeout 300 $$part $(TEST_ARGS) $(TESTS)"; \
		eval "$(BIN)/python -m pytest --timeout 300 $$part $(TEST_ARGS) $(TESTS)"; code=$$?; \
		[ $$code -eq 0 ] || [ $$code -eq 5 ] || status=1; \
	done; $(BIN)/python -m tests.support.skip_ledger $$SKIP_LEDGER; rm -f $$SKIP_LEDGER; exit $$status

redis-test: install ## the tests that start a Redis, without measurements, with the bundled Redis
	$(BIN)/python -m tests.support.path_without_redis $(BIN)/python -m pytest --timeout 300 -n $(JOBS) \
		--dist loadfile -m "redis and not needs_redis and not alone" -k "not bench" $(TEST_ARGS) \
		tests/integration tests/chart

clients: install ## run unmodified clients (openai, litellm, ...) against baton up; downloads GBs once
	$(BIN)/python -m tests.clients --venvs .venv-clients

load: install ## load a running gateway as its users would (URL= USERS= TIME= SCENARIO=shared-system-prompt LIMITS='--ttft-limit-ms 500'); locust, no page
	@said=$$($(BIN)/baton status --url $(URL) 2>&1 >/dev/null) || { code=$$?; \
		echo "$$said" | sed 's/--url or BATON_URL/URL=.../' >&2; exit $$code; }
	$(BIN)/locust -f loadtest/$(subst -,_,$(SCENARIO)).py -H $(URL) --headless --users $(USERS) --spawn-rate 4 \
		--run-time $(TIME) --only-summary $(if $(CSV),--csv $(CSV)) $(LIMITS)

hand-overs: install ## 10,000 mapped hand-overs under re-use; 100 owners and 20 workers killed amid copies, reads by nixl and by nccl
	TRANSFER_PULLS=10000 TRANSFER_KILLS=100 WORKER_KILLS=20 $(BIN)/python -m pytest $(TEST_ARGS) \
		-k "(mapped and reuse) or amid_copies or amid_reads or amid_a_read or middle_of_a_copy" \
		tests/integration/transfer tests/e2e/faults/test_kill.py

chaos-ci: install ## 100 faults in a cell of six workers and gateways: nothing lost, wrong, leaked or billed twice
	$(BIN)/baton chaos --faults 100 --seed $(or $(SEED),1) --pause-s 0.3

soak: install ## two hours of faults that spare a gateway and a worker of each role: no memory of theirs grows
	$(BIN)/baton chaos --faults $(or $(FAULTS),2500) --seed $(or $(SEED),1) --pause-s 0.5 \
		--spare gateway,prefill-0,decode-0 $(if $(RESUME),--resume $(RESUME))

fuzz: install ## a million odd bodies at a gateway and a million damaged frames: only 2xx and 4xx (BODIES= SEED=)
	$(BIN)/python -m tests.campaigns.body_fuzz $(if $(BODIES),--bodies $(BODIES)) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.support.frame_fuzz

redis-ways: install ## Redis fails in each of ten ways for 10 s under 20 streams, then for a minute at 50 requests a second
	$(BIN)/python -m tests.campaigns.redis_ways $(if $(SECONDS),--seconds $(SECONDS)) $(if $(WAYS),--ways $(WAYS))

transfers: install ## a million blocks handed over under re-use and ended leases, and damaged ones: none wrong is taken (BLOCKS=)
	$(BIN)/python -m tests.campaigns.transfers $(if $(BLOCKS),--blocks $(BLOCKS)) $(if $(SEED),--seed $(SEED))

restarts: install ## workers restarted in turn, and decode shrunk to one and grown again, under load (RESTARTS= RESIZES=)
	$(BIN)/python -m tests.campaigns.rolling_restarts $(if $(RESTARTS),--restarts $(RESTARTS)) $(if $(RESIZES),--resizes $(RESIZES))

cancels: install ## clients that hang up, in every state of a request and five hundred at once: their blocks are free soon
	$(BIN)/python -m tests.campaigns.cancels

overload: install ## three times what the cell can answer, for three minutes: whoever is admitted waits no longer (SECONDS=)
	$(BIN)/python -m tests.campaigns.overload $(if $(SECONDS),--seconds $(SECONDS))

fair-shares: install ## two tenants, one of which sends ten times as much: what both are served (SECONDS= CASES=1,2)
	$(BIN)/python -m tests.campaigns.full_cells.fair_shares $(if $(SECONDS),--seconds $(SECONDS)) $(if $(CASES),--cases $(CASES))

deadlines: install ## requests with x-baton-timeout-s at a full cell: refused at once, or answered in time (SECONDS=)
	$(BIN)/python -m tests.campaigns.full_cells.deadlines $(if $(SECONDS),--seconds $(SECONDS))

failpoints: install ## a process dies right before and right after each step of a request, two times each (TURNS= SEED=)
	$(BIN)/python -m tests.campaigns.failpoints $(if $(TURNS),--turns $(TURNS)) $(if $(SEED),--seed $(SEED))

poison: install ## six requests that kill engines among 200 others, which are all answered
	POISONS=6 INNOCENTS=200 POISON_WINDOW_S=60 $(BIN)/python -m pytest --timeout 900 $(TEST_ARGS) \
		tests/e2e/faults/test_poison.py

compile-kernels: install ## each kernel for each type, head size and GPU generation, no GPU needed; make test has a third
	COMPILE_EVERY=1 $(BIN)/python -m pytest --timeout 900 $(TEST_ARGS) tests/unit/kernels/test_compile.py

kv-pressure: install ## the same load over the three policies of --on-kv-pressure, with few KV blocks (ASKS= SEED=)
	$(BIN)/python -m tests.campaigns.full_cells.kv_pressure $(if $(ASKS),--asks $(ASKS)) $(if $(SEED),--seed $(SEED))

slow-link: install ## hand-overs at a tenth of the rate they need, tcp and mapped, 1P1D and 2P2D (SECONDS= SEED=)
	$(BIN)/python -m tests.campaigns.slow_link $(CAMPAIGN)

kill-campaign: install ## kill -9 of a worker every 10 s under 16 streams (SECONDS= SEED= BUSY=1)
	$(BIN)/python -m tests.campaigns.kill_campaign $(CAMPAIGN) $(if $(BUSY),--busy)

simulate: install ## scaling policies on simulated days, and what is claimed of ours (TRACES="FILE ..." SEEDS= HOURS= JOBS= LINES=)
	$(BIN)/python -m tests.campaigns.scaling.simulate $(foreach trace,$(TRACES),--source $(trace)) \
		$(if $(SEEDS),--seeds $(SEEDS)) $(if $(HOURS),--hours $(HOURS)) --jobs $(JOBS) $(if $(LINES),--lines $(LINES))

measured-run: install ## the simulator held against a cell of processes with paced devices, at three loads (SECONDS=)
	$(BIN)/python -m tests.campaigns.scaling.measured $(if $(SECONDS),--seconds $(SECONDS))

stopped-worker: install ## one of two decode workers stands still for 8 s under 16 streams
	$(BIN)/python -m tests.campaigns.stopped_worker $(CAMPAIGN)

chart: install ## lint, render and check the Helm chart in helm/
	$(BIN)/python -m pytest --timeout 300 $(TEST_ARGS) tests/chart

kube-test: install ## the chart on a real control plane, built once (Debian, root; minutes), pods as processes
	tests/kube/build_apiserver.sh
	tests/kube/in_namespaces.sh $(BIN)/python -m pytest --timeout 300 $(TEST_ARGS) \
		tests/kube/chart_lifecycle.py $(addprefix tests/kube/scenarios/,scaling.py lost_parts.py rollouts.py autoscaling.py)

scale-cycles: install ## the chart's autoscaler takes workers away and orders them again, under load (CYCLES=; as kube-test)
	tests/kube/build_apiserver.sh
	KUBE_TEST_CYCLES=$(or $(CYCLES),20) tests/kube/in_namespaces.sh $(BIN)/python -m pytest --timeout 5400 $(TEST_ARGS) \
		tests/kube/scenarios/autoscaling.py

image-test: install ## both images built by buildah (Debian, root; minutes), and the chart's upgrades under load in podman's containers
	tests/images/build_stand_ins.sh
	tests/kube/build_apiserver.sh
	$(BIN)/python -m pytest --timeout 1800 $(TEST_ARGS) tests/images/builds.py
	KUBE_TEST_PODS=containers tests/kube/in_namespaces.sh $(BIN)/python -m pytest --timeout 600 $(TEST_ARGS) \
		$(addprefix tests/kube/scenarios/,confinement.py scaling.py rollouts.py) -k "confined or killed or three_rollouts"

kind-test: install ## the chart's scenarios on kind with the images of docker/, where Docker and kind are (TORCH_INDEX=<url>)
	TORCH_INDEX="$(TORCH_INDEX)" tests/kube/in_kind.sh $(BIN)/python -m pytest --timeout 900 $(TEST_ARGS) \
		$(addprefix tests/kube/scenarios/,scaling.py rollouts.py lost_parts.py) -k "$(PORTABLE)"

audit: ## known vulnerabilities of the pinned dependencies, by pip-audit
	@command -v pip-audit >/dev/null || { echo "baton: error: pip-audit is missing: pipx install pip-audit" >&2; exit 3; }
	pip-audit --requirement constraints.txt --no-deps --disable-pip

format: install ## rewrite the sources in the project's format
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

clean: ## remove .venv and everything built or cached in this folder
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
