"""The process grows by no more than a join's budget and a fixed allowance, however long the stream.

The short version of ``semistream_lab.benchmarks.memory_growth``: half a million tuples, one fresh process a join.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import semistream
from semistream.cli import app
from semistream.joins import find
from semistream_lab.benchmarks import memory_growth
from semistream_lab.benchmarks.memory_growth import ALLOWANCE, MemorySpec, measure_apart, prepare
from semistream_lab.cli.bench.memory import growth_table

pytestmark = pytest.mark.slow

SPEC = MemorySpec(rows=200_000, tuples=500_000, batch_rows=20_000, direct=False)
LONG = pytest.mark.long
FEW = ("hybridjoin", "cachejoin", "ssij", "adaptivejoin")
"""Joins that have no memory in common: the others are measured by make test-all."""
BOUNDED = [algorithm for algorithm in semistream.algorithms() if find(algorithm).bounded]

# A run this short has no right to the whole allowance. Joins took 4 to 7 MB of it; with kernels to compile, 16.
SHORT_ALLOWANCE = ALLOWANCE // 2
# Eight bytes a tuple: what a join that keeps but one number of each would take.
MOST_CREEP = 8 * SPEC.tuples // 2


@pytest.fixture(scope="module")
def relation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(SPEC, tmp_path_factory.mktemp("memory"))


@pytest.mark.sampled
@pytest.mark.parametrize("algorithm", [pytest.param(one, marks=[] if one in FEW else [LONG]) for one in BOUNDED])
def test_resident_memory_stays_within_the_budget(algorithm: str, relation: Path) -> None:
    growth = measure_apart(algorithm, relation, SPEC, memory="10%")
    assert growth.tuples == SPEC.tuples
    assert growth.peak_reserved <= growth.budget
    assert growth.beyond <= SHORT_ALLOWANCE, f"grew by {growth.growth:,} B with a budget of {growth.budget:,} B"
    assert growth.creep <= MOST_CREEP, f"grew by {growth.creep:,} B in the second half of the stream"


def test_the_command_says_what_processes_grew_by(tmp_path: Path) -> None:
    options = ["--rows", "2000", "--tuples", "5000", "--budget", "50%", "--only", "hybridjoin", "--only", "oracle"]
    outcome = CliRunner().invoke(app, ["bench", "memory", *options, "--json", "--dir", str(tmp_path)])
    assert outcome.exit_code == 0, outcome.output
    found = json.loads(outcome.stdout)
    (run,) = found["runs"]  # the oracle keeps to no budget
    assert (run["algorithm"], run["tuples"], run["growth"] - run["budget"]) == ("hybridjoin", 5000, run["beyond"])
    (kept,) = (tmp_path / "results").iterdir()
    assert json.loads(kept.read_text()) == found
    assert "hybridjoin" in [cell for column in growth_table(found).columns for cell in column.cells]


def test_wide_rows_are_measured_too(tmp_path: Path) -> None:
    # without a bound in bytes results alone would be the 200 MB of the stream
    options = ["--wide", "--rows", "500", "--tuples", "5000", "--budget", "8MB", "--only", "hybridjoin", "--buffered"]
    outcome = CliRunner().invoke(app, ["bench", "memory", *options, "--json", "--dir", str(tmp_path)])
    assert outcome.exit_code == 0, outcome.output
    found = json.loads(outcome.stdout)
    (run,) = found["runs"]
    assert (run["tuples"], found["spec"]["text_bytes"], found["spec"]["row_bytes"]) == (5000, 40_000, 5_000)
    assert run["beyond"] <= SHORT_ALLOWANCE


def test_the_command_fails_where_a_process_grew_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_growth, "ALLOWANCE", -(1 << 40))
    options = ["--rows", "2000", "--tuples", "2000", "--budget", "50%", "--only", "inlj", "--dir", str(tmp_path)]
    assert CliRunner().invoke(app, ["bench", "memory", *options]).exit_code == 1
