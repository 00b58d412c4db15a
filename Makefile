# demo [DIR=project]  the main job, on this repository or on another project
# test                everything that must pass; what CI runs
# test-pydantic-ai    the adapter with the oldest Pydantic AI that it claims and with the newest
# check               the quick form, for every change
# attack              at length: a million calls while another process exchanges names; killed writers, altered bytes
# loom                every interleaving of the scope store's threads, up to a bound
# bench bench-large   the release build against its goals
# test-peers          the harness's own tools on our workspace
# bench-peers         the release build beside the file tools of others
# lint format dev clean
#
# Needs git, make, Python >= 3.11 and a Rust toolchain. The rest goes into .venv (tools, development build),
# .venv-release (what `pip install .` makes, for bench), build and target; `make clean` removes all of it.

.DELETE_ON_ERROR:
.PHONY: demo test test-wheel test-python test-pydantic-ai check attack loom lint lint-rust lint-python format dev bench bench-large test-peers bench-peers clean

DIR ?= .

# A name on PATH proves nothing, since version managers leave stubs: take the first Python that runs and can make a
# virtual environment.
PYTHON ?= $(shell for name in python3.14 python3.13 python3.12 python3.11 python3; do \
	$$name -c 'import ensurepip, sys, venv; assert sys.version_info >= (3, 11); print(sys.executable)' 2>/dev/null && break; \
	done)

# Where HOME has no toolchain for rustup's cargo, as in a clean room, those beside the cargo on PATH are meant.
ifeq ($(shell cargo --version 2>/dev/null),)
toolchains := $(wildcard $(dir $(shell command -v cargo))../../.rustup)
ifneq ($(toolchains),)
export RUSTUP_HOME := $(abspath $(toolchains))
endif
endif

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYO3_PYTHON := $(CURDIR)/.venv/bin/python

bin := .venv/bin
crate := Cargo.toml Cargo.lock $(shell find src -type f)
package := pyproject.toml README.md LICENSE $(shell find python -type f -not -name '*.so' -not -path '*/__pycache__/*')

demo: .venv/.built
	$(bin)/python examples/demo.py "$(DIR)"

# What keeps one core busy runs beside something else that does; output is not mixed.
pair := $(MAKE) --no-print-directory --jobs=2 --output-sync=target

test: .venv/.built build/wheel/.built
	$(pair) lint-rust lint-python
	cargo test --locked
	$(pair) test-wheel test-python

test-wheel: build/wheel/.built
	$(bin)/python .ci/wheel.py build/wheel/*.whl

test-python: .venv/.built
	$(bin)/python -m pytest

pydantic := $(addprefix tests/python/test_,pydantic_adapter.py pydantic_load.py kgent_capability.py readme.py)

test-pydantic-ai: .venv/.built build/oldest/.installed
	PYTHONPATH=$(CURDIR)/python build/oldest/bin/python -m pytest -p no:cacheprovider $(pydantic)
	$(bin)/python -m pytest $(pydantic)

check: .venv/.built
	cargo fmt --check
	$(bin)/ruff format --check --quiet
	$(bin)/ruff check --quiet
	cargo clippy --quiet --all-targets --all-features -- -D warnings
	cargo test --quiet -- --skip race::
	$(bin)/python -m pytest --quiet -m "not slow"

lint: lint-rust lint-python

lint-rust: .venv/.tools
	cargo fmt --check
	cargo clippy --locked --all-targets --all-features -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" cargo doc --locked --no-deps --all-features --document-private-items

lint-python: .venv/.built
	$(bin)/ruff format --check
	$(bin)/ruff check
	$(bin)/basedpyright --warnings
	$(bin)/mypy
	$(bin)/python -m mypy.stubtest --mypy-config-file pyproject.toml kgent_tools._core

format: .venv/.tools
	cargo fmt
	$(bin)/ruff format
	$(bin)/ruff check --fix

dev: .venv/.built

attack: .venv/.built
	KGENT_ATTACK_OPERATIONS=1000000 cargo test --locked --profile attack --test integration race
	KGENT_LONG=1 $(bin)/python -m pytest -m slow $(addprefix tests/python/test_,log_faults.py records.py audit.py report.py)

# All crates are compiled anew for it, in a folder of their own.
loom:
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test --locked --test loom

bench: .venv-release/.installed
	.venv-release/bin/python benches/bench.py

bench-large: .venv-release/.installed
	.venv-release/bin/python benches/bench.py large

test-peers: build/peers/.installed
	build/peers/bin/python -m pytest -p no:cacheprovider tests/python/test_harness.py

bench-peers: build/peers/.installed
	build/peers/bin/python benches/peers.py

clean:
	rm -rf .venv .venv-release build target python/kgent_tools/_core*.so

.venv/bin/python .venv-release/bin/python build/oldest/bin/python build/peers/bin/python:
	@test -n "$(PYTHON)" || { echo "Python >= 3.11 with the venv module is needed; name it with PYTHON=..." >&2; exit 1; }
	"$(PYTHON)" -m venv --clear $(@D:/bin=)
	$@ -m pip install --quiet "pip>=25.1" # the first that reads dependency groups

.venv/.tools: pyproject.toml | .venv/bin/python
	$(bin)/python -m pip install --quiet --no-compile --group dev
	touch $@

.venv/.built: .venv/.tools $(crate) pyproject.toml
	PIP_QUIET=1 VIRTUAL_ENV=$(CURDIR)/.venv $(bin)/maturin develop --quiet
	touch $@

# Of the development profile, whose crates are built already: it is the wheel that is tested here, not the optimiser.
build/wheel/.built: .venv/.tools $(crate) $(package)
	rm -rf build/wheel
	$(bin)/maturin build --quiet --locked --out build/wheel
	touch $@

build/oldest/.installed: pyproject.toml | build/oldest/bin/python
	build/oldest/bin/python -m pip install --quiet --no-compile --group oldest
	touch $@

.venv-release/.installed: export PYO3_PYTHON := $(CURDIR)/.venv-release/bin/python
.venv-release/.installed: $(crate) $(package) | .venv-release/bin/python
	.venv-release/bin/python -m pip install --quiet . --group ripgrep
	touch $@

build/peers/.installed: export PYO3_PYTHON := $(CURDIR)/build/peers/bin/python
build/peers/.installed: $(crate) $(package) | build/peers/bin/python
	build/peers/bin/python -m pip install --quiet --no-compile '.[pydantic-ai]' --group peers
	touch $@
