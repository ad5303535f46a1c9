# One command is the gate: `make check`. Everything installs into .venv, from a lock with hashes.

PYTHON     ?= python3
UV_VERSION := 0.13.7
JOBS       ?= 2
ARGS       ?=
FRESH      ?=
T          ?=

VENV  := .venv
PY    := $(VENV)/bin/python
UV    := $(VENV)/bin/uv
READY := $(VENV)/.ready
# Apart, because Spark is 450 MB that only its own jobs and tests need; together in one .venv.
LOCKS := requirements.txt requirements-spark.txt

# uv does not read pip's configuration. Where a machine names its own index there, pass it on at run time, so that
# no address is ever written into a file.
WITH_INDEX = index="$${PIP_INDEX_URL:-$$($(PY) -m pip config get global.index-url 2>/dev/null || true)}"; \
	if [ -n "$$index" ]; then export UV_DEFAULT_INDEX="$$index"; fi;

COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-annotate --no-header

INSTALL_BENCH = $(WITH_INDEX) $(UV) pip install --quiet --python $(PY) --require-hashes -r requirements-bench.txt || \
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-bench.txt

# Bytecode, even on a machine that wants none: without it every process of a run compiles every module again.
PYTEST = PYTHONDONTWRITEBYTECODE= $(PY) -m pytest
# Folders and files, so that the rest of the tree is not even collected.
UNIT := tests/unit tests/api/test_api.py tests/api/test_flow.py \
	tests/cli --ignore=tests/cli/test_dashboard.py --ignore=tests/cli/test_on_s3.py --ignore=tests/cli/test_archive.py \
	tests/functions/test_exports.py tests/functions/test_imports.py tests/functions/test_queues.py

.DEFAULT_GOAL := help
.PHONY: help setup test unit check proof bench demo up down synth cdk aws-smoke sbom audit docs lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Create .venv from the lock, with the s3queue command (instant when nothing changed)
	@echo "$(VENV) is ready"

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "s3queue needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
		     "Try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# By its hash, like everything that it installs then.
$(UV): requirements-uv.txt | $(PY)
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

# pip is slower, but knows every index, proxy and certificate that the machine configured for it.
# The project itself comes last, editable: its build backend is in the lock, so nothing more is downloaded.
$(READY): $(LOCKS) pyproject.toml $(UV)
	@echo "Installing the locked dependencies into $(VENV)"
	@$(WITH_INDEX) $(UV) pip install --quiet --python $(PY) --require-hashes $(LOCKS:%=-r %) || { \
		echo "uv could not install the locks; trying pip" >&2; \
		$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes $(LOCKS:%=-r %); }
	@$(UV) pip install --quiet --python $(PY) --offline --no-deps --no-build-isolation --editable .
	@touch $@

test: $(READY) ## Run every test (T=tests/unit/test_keys.py one file, ARGS="-k lease" narrows it, JOBS=1 debugs it)
	$(PYTEST) $(if $(T),$(T),-n $(JOBS) --dist loadgroup) $(ARGS)

unit: $(READY) ## Run the tests that start no server, in a minute (the proof starts none either, and takes longer)
	$(PYTEST) -n $(JOBS) $(UNIT) $(ARGS)

check: $(READY) ## The gate, as CI runs it: lint, format, types, import rule, advisories, docs, then every test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache
	@$(MAKE) --no-print-directory audit
	@test ! -f mkdocs.yml || $(MAKE) --no-print-directory docs
	@$(MAKE) --no-print-directory test

proof: $(READY) ## The long proof: 200,000 schedules, crashes, planted bugs, 30 minutes of kill -9 (ARGS="--schedules 1000 --minutes 1")
	PYTHONPATH=functions:tests $(PY) -m simulation.proof $(ARGS)

bench: $(READY) ## Measure: against the limit, the plugin, PGMQ, boto3; latency, growth, cold start, cost (20 minutes)
	@$(INSTALL_BENCH)
	PYTHONPATH=functions:tests:. $(PY) -m bench $(ARGS)

demo: $(READY) ## Deploy the stack on this machine and watch it process messages
	PYTHONPATH=functions:. $(PY) -m infra.local demo $(ARGS)

up: $(READY) ## Keep the stack running on this machine, with the port and data of last time (FRESH=1 forgets them)
	PYTHONPATH=functions:. $(PY) -m infra.local up $(if $(FRESH),--fresh) $(ARGS)

down: $(READY) ## End what `make up` left running
	PYTHONPATH=functions:. $(PY) -m infra.local down

synth: $(READY) ## Write the CloudFormation templates to cdk.out
	PYTHONPATH=functions:. $(PY) -m infra.local synth $(ARGS)

cdk: $(READY) ## Run the locked CDK CLI on your AWS account (ARGS="deploy --all")
	@PYTHONPATH=functions:. $(PY) -m infra.local cdk $(ARGS)

aws-smoke: $(READY) ## Send one message down every path on your AWS account: asks first, below a dollar, removes everything (ARGS=--local rehearses it)
	@PYTHONPATH=functions:. $(PY) -m infra.smoke $(ARGS)

sbom: $(READY) ## List what others wrote and we ship or install, with its licences: CycloneDX into build/sbom
	PYTHONPATH=functions:. $(PY) -m infra.packaging.sbom

audit: $(READY) ## Ask OSV about every locked package; a finding fails, a machine without network is told so
	@PYTHONPATH=. $(PY) -m infra.packaging.audit

# In an environment of its own: what builds a site is no part of what is tested.
docs: $(UV) ## Build the documentation into build/docs; a broken link fails
	@test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	@$(WITH_INDEX) $(UV) pip sync --quiet --python .venv-docs/bin/python --require-hashes requirements-docs.txt || \
		.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.txt
	@# Not --quiet: that hides the warnings from --strict, and a broken link would pass.
	PATH="$(CURDIR)/.venv-docs/bin:$$PATH" NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict
	@echo "build/docs/index.html is ready"

lock: $(UV) ## Resolve the dependencies again and rewrite the locks
	@$(WITH_INDEX) $(COMPILE) pyproject.toml --extra cli --extra pydantic --extra powertools --extra cdk --group dev \
		-o requirements.txt
	@# What both locks name has one version: they are installed together.
	@$(WITH_INDEX) $(COMPILE) pyproject.toml --extra spark -c requirements.txt -o requirements-spark.txt
	@# MiniStack runs in an environment of its own: with a newer boto3 CDK's notification resource hangs on it.
	@$(WITH_INDEX) printf 'ministack==1.5.33\nboto3==1.43.106\n' | $(COMPILE) - -o requirements-ministack.txt
	@$(WITH_INDEX) printf 'uv==$(UV_VERSION)\n' | $(COMPILE) - -o requirements-uv.txt && ! grep -n '://' requirements-uv.txt
	@$(WITH_INDEX) $(COMPILE) --group lambda -c requirements.txt -o requirements-lambda.txt
	@$(WITH_INDEX) $(COMPILE) --group bench $(LOCKS:%=-c %) -o requirements-bench.txt
	@$(WITH_INDEX) $(COMPILE) --group docs -o requirements-docs.txt
	@! grep -n '://' $(LOCKS) requirements-ministack.txt requirements-lambda.txt requirements-bench.txt requirements-docs.txt

clean: ## Remove .venv, caches and build output (not .local, the local stack's state)
	rm -rf $(VENV) .venv-docs build dist cdk.out test-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find functions infra spark tests -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
