# Everything is set up by the targets that need it: a bare Debian with Python 3.11 (venv), make, gcc and g++ is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A run prints its own progress; pip's is kept to errors.
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# A test that watches live processes may lose a race of its own on a busy machine: it gets a second try, a few
# times a run, and the run shows what the first one met.
AGAIN := --reruns 1 --max-suite-reruns 3 --rerun-show-tracebacks
.PHONY: demo test test-fast lint bench bench-isolate bench-observing bench-faults bench-clean-up bench-hang docs clean

demo: $(VENV)/.ready
	$(BIN)/shakedown demo

test: $(VENV)/.ready
	$(BIN)/python -m shakedown.provision all
	$(BIN)/pytest -m "not engine" -n 3 --dist loadfile $(AGAIN)
	$(BIN)/pytest -m engine --durations 0 $(AGAIN)

test-fast: $(VENV)/.ready
	$(BIN)/pytest -m "not engine and not slow" -n 3 --dist loadfile

lint: $(VENV)/.ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: bench-isolate bench-observing bench-faults bench-clean-up

bench-isolate: $(VENV)/.ready
	$(PIP) install --group bench
	$(BIN)/python benchmarks/isolate_simulation.py --rivals
	$(BIN)/python benchmarks/isolate_workers.py
	$(BIN)/python benchmarks/isolate_executor.py
	$(BIN)/python benchmarks/isolate_marks.py
	$(BIN)/python benchmarks/isolate_processes.py
	$(BIN)/python benchmarks/isolate_engines.py

bench-observing: $(VENV)/.ready
	$(BIN)/python benchmarks/observing.py

bench-faults: $(VENV)/.ready
	$(BIN)/python benchmarks/real_faults.py

# An hour and a half on two cores; a run that was cut goes on where it stopped.
bench-hang: $(VENV)/.ready
	$(BIN)/python benchmarks/hangs.py

bench-clean-up: $(VENV)/.ready
	$(BIN)/python benchmarks/clean_up.py
	$(BIN)/python benchmarks/clean_up.py --without-cgroups

docs: $(VENV)/.ready
	$(BIN)/python -m shakedown.cli.reference > docs/cli.md

$(VENV)/.ready: pyproject.toml
	@echo "Setting up $(VENV) (once per clone, about a minute)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade "pip>=25.1"
	$(PIP) install --editable '.[drafter]' --group dev
	@touch $@

clean:
	rm -rf $(VENV)
