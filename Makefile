# Targets need python3, pip and a shell; everything else is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
BENCH_STAMP := .venv/.installed-bench
FOREIGN_STAMP := .venv/.installed-foreign
ZOO_STAMP := .venv/.installed-zoo
LONG_STAMP := .venv/.installed-long
DOCS_STAMP := .venv/.installed-docs

.PHONY: install tables reproduce laptop results/laptop paper results/paper test test-shapes test-long test-foreign test-zoo test-lowest docs chromium bench bench-machines lint clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps disent==0.8.0  # array metrics, for parity
	touch $@

# Every experiment's quick profile, two at a time, the fast ones first; prints the path of the index page at the end.
reproduce: install
	$(BIN)/vaescope reproduce --all --profile quick --jobs 2

# Every experiment at the size of a laptop, hours on two cores, two at a time; interrupted, the same command continues.
laptop: install
	$(BIN)/vaescope reproduce --all --profile laptop --jobs 2

# The synthetic experiments at the published settings, beside the authors' values; half of the members of each in each of
# two processes, so that neither waits for the other.
PAPER := elbo-gap self-consistency moebius-precision moebius-linear-map
paper: install
	$(BIN)/vaescope reproduce $(PAPER) --profile paper --jobs 2 --split

# What of it is kept with the source: everything but weights and histories.
results/laptop results/paper: results/%: %
	mkdir -p $@
	cp -r runs/$*/. $@/
	rm -rf $@/*/weights $@/*/history.parquet $@/*/.lock

# Tables of committed results in the README and in docs, as the results have them.
tables: install
	$(BIN)/python -c "from pathlib import Path; from vaescope_papers.summary import refresh_pages; print(refresh_pages(Path()))"

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Every test once. Files run in this order, the long ones first, so that no process waits for another at the end.
WORKFLOWS := tests/test_docs.py tests/papers tests/diagnose tests/jobs tests/sweeps tests/explore tests/fuzz tests/regime \
	tests/test_fitting.py tests/test_cli.py tests/test_contract.py tests/metrics tests/foreign
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
test: lint chromium
	$(PYTEST) -m "not long" -o addopts="--doctest-modules -q" $(WORKFLOWS) tests/theory tests/training tests src

# The same with checks of array shapes at every call, which double the time; whole workflows, which train and measure a lot, are left out.
test-shapes: install
	$(PYTEST) -m "not long" $(WORKFLOWS:%=--ignore=%)

# Pages are tested in a browser; where there is none and none can be installed, these tests are skipped.
chromium:
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 \
		|| echo "No Chromium here: pages are not tested in a browser."

# What takes longer: workflows with checks of array shapes, tests marked long, 30 kills, 100,000 damaged files, a Ray cluster that loses a node, an MLflow server.
test-long: install $(LONG_STAMP)
	$(PYTEST) -m "not long" $(WORKFLOWS)
	$(PYTEST) -m long
	OMP_NUM_THREADS=1 VAESCOPE_KILLS=30 VAESCOPE_FUZZ=100000 $(BIN)/python -m pytest -s \
		tests/sweeps tests/fuzz tests/jobs

$(LONG_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray,track]'
	touch $@

# Models that other libraries trained: pythae, scvi-tools, diffusers.
test-foreign: install $(FOREIGN_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests/foreign

# Train the zoo once (40 minutes on one core; weights are kept in ~/.cache/vaescope-zoo), diagnose all of it, and score.
test-zoo: install $(ZOO_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.zoo.score
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/zoo

$(ZOO_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[zoo]'
	touch $@

$(FOREIGN_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[foreign]'
	touch $@

# The lowest version of every dependency, once per change of a bound: analysis, training, files and the package itself.
# The lowest PyTorch comes with its GPU libraries (3 GB).
LOWEST := tests/test_extras.py tests/test_cli.py tests/test_fitting.py tests/theory tests/regime tests/diagnose \
	tests/models tests/training tests/distributions tests/data
test-lowest:
	test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt \
		-e '.[all]' pytest hypothesis beartype
	OMP_NUM_THREADS=1 .venv-lowest/bin/python -m pytest -m "not long" -W default -o addopts="-q" $(LOWEST)

# The site, in site/: opens from the disk, requests nothing from the network.
docs: install $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "file://$(CURDIR)/site/index.html"

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

bench: install $(BENCH_STAMP)
	$(BIN)/python -m benchmarks.stack
	$(BIN)/python -m benchmarks.fit
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m benchmarks.theory
	$(BIN)/python -m benchmarks.metrics
	$(BIN)/python -m benchmarks.images
	$(BIN)/python -m benchmarks.division
	$(BIN)/python -m benchmarks.streaming
	$(BIN)/python -m benchmarks.orthogonality
	$(BIN)/python -m benchmarks.checkpoints
	$(BIN)/python -m benchmarks.grid

# Members per hour on 1, 2 and 4 node processes of a Ray cluster.
bench-machines: install $(LONG_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.machines

$(BENCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $@

clean:
	rm -rf .venv .venv-lowest runs site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
