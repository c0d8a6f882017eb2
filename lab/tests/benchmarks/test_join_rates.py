"""The benchmark of joins: what it runs, counts, keeps and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

import semistream
from semistream.cli import app
from semistream.joins.interface.join import Join
from semistream_lab.benchmarks import join_rates
from semistream_lab.benchmarks.join_rates import BenchError, RateSpec, bench_joins, prepare_relation
from semistream_lab.cli.bench.joins import ResultFileError, _workload

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("join rates")]  # one run for all

SMALL = RateSpec(rows=20_000, batch_rows=2_000, batches=3, warm_up=1, memory="400KB")
OPTIONS = ("--rows", "20000", "--batch", "2000", "--batches", "2", "--warm-up", "1", "--memory", "400KB")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def found(directory: Path) -> dict[str, Any]:
    """One run of all joins."""
    return bench_joins(SMALL, prepare_relation(SMALL, directory))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["bench", *(str(argument) for argument in arguments)], env={"COLUMNS": "100"})


@pytest.mark.long
def test_every_registered_join_has_a_rate(found: dict[str, Any]) -> None:
    assert list(found["rates"]) + list(found["skipped"]) == semistream.algorithms()
    assert found["skipped"] == {}
    for name, join in found["joins"].items():
        assert len(join["seconds"]) == 3
        assert len(join["warm_up_seconds"]) == 1
        assert found["rates"][name] == pytest.approx(2_000 / sorted(join["seconds"])[1])
        if join["bounded"]:
            assert 0 < join["bytes_held"] <= join["budget"] == 400_000


def test_counts_leave_the_warm_up_out(found: dict[str, Any]) -> None:
    """INLJ reads a page for every tuple, so its count says exactly what was counted."""
    assert found["joins"]["inlj"]["pages_read"] == 3 * 2_000
    assert found["joins"]["oracle"]["pages_read"] == 0
    assert found["joins"]["oracle"]["hit_ratio"] == 1.0


def test_results_say_where_they_are_from(found: dict[str, Any]) -> None:
    assert found["machine"]["cores"] >= 1
    assert found["commit"]
    assert found["spec"]["rows"] == 20_000
    assert found["device"]["seek_seconds"] >= 0
    json.dumps(found)


def test_frequent_keys_lie_anywhere_by_default() -> None:
    """As in real master data. In the papers' ``noperm`` the most frequent keys are the first of R."""
    first = next(RateSpec(rows=100_000, batch_rows=10_000).stream_batches())
    assert (first["product_id"].to_numpy() < 10_000).mean() < 0.5


def test_the_relation_is_built_once(directory: Path, found: dict[str, Any]) -> None:
    wrote: list[int] = []
    path = prepare_relation(SMALL, directory, wrote.append)
    assert wrote == []
    assert path.is_relative_to(directory)
    other = RateSpec(rows=1_000, row_bytes=60)
    assert prepare_relation(other, directory, wrote.append) != path
    assert sum(wrote) == 1_000


def test_stream_is_cut_into_batches_of_the_size_asked_for() -> None:
    spec = RateSpec(rows=500, batch_rows=70_001, batches=2, warm_up=1)
    batches = list(spec.stream_batches())
    assert [batch.num_rows for batch in batches] == [70_001] * 3
    assert pa.Table.from_batches(batches).equals(spec.workload().stream.table())


def test_a_join_that_loses_rows_is_no_contestant(
    directory: Path, found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Join.process
    monkeypatch.setattr(Join, "process", lambda self, batches: list(right(self, batches))[1:])
    with pytest.raises(BenchError, match="with one match each"):
        bench_joins(RateSpec(**{**SMALL.__dict__, "only": ("inlj",)}), prepare_relation(SMALL, directory))


def test_a_continuous_stream_is_not_drained(directory: Path) -> None:
    """MESHJOIN then needs far less than a pass over R for a batch, and all tuples count that left."""
    options = {**SMALL.__dict__, "only": ("meshjoin",), "batch_rows": 500, "batches": 6, "warm_up": 2}
    path = prepare_relation(SMALL, directory)
    drained, kept = (bench_joins(RateSpec(**{**options, "continuous": way}), path) for way in (False, True))
    assert kept["joins"]["meshjoin"]["pages_read"] < 0.5 * drained["joins"]["meshjoin"]["pages_read"]
    assert kept["rates"]["meshjoin"] > 0
    assert "a continuous stream in batches" in " ".join(_workload(kept))


def test_an_unbounded_join_is_skipped_where_it_does_not_fit(
    directory: Path, found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_rates.os, "sysconf", lambda name: 1000)
    spec = RateSpec(**{**SMALL.__dict__, "only": ("oracle", "hybridjoin"), "batches": 1, "warm_up": 0})
    monkeypatch.setattr(join_rates, "describe_machine", lambda path: {})
    result = bench_joins(spec, prepare_relation(SMALL, directory))
    assert list(result["rates"]) == ["hybridjoin"]
    assert "memory" in result["skipped"]["oracle"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": 0}, "rows must be at least 1"),
        ({"batches": 0}, "batches must be at least 1"),
        ({"memory": "much"}, "'much'"),
        ({"only": ("meshjion",)}, "meshjoin"),
        ({"row_bytes": 3}, "row_bytes"),
        ({"exponent": -1.0}, "exponent"),
    ],
)
def test_bad_settings_are_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RateSpec(**options)


def test_too_large_for_the_disk(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="free"):
        prepare_relation(RateSpec(rows=10**12), tmp_path)


def test_command_prints_json_and_keeps_it(directory: Path, found: dict[str, Any]) -> None:
    out = directory / "kept"
    outcome = run(
        "joins", "--json", *OPTIONS, "--only", "inlj", "--only", "meshjoin", "--dir", directory, "--output", out
    )
    assert outcome.exit_code == 0, outcome.output
    printed = json.loads(outcome.stdout)
    assert list(printed["rates"]) == ["inlj", "meshjoin"]
    assert all(rate > 0 for rate in printed["rates"].values())
    (kept,) = out.iterdir()
    assert json.loads(kept.read_text()) == printed


def test_command_prints_a_table(directory: Path, found: dict[str, Any]) -> None:
    outcome = run("joins", *OPTIONS, "--only", "oracle", "--only", "inlj", "--dir", directory)
    assert outcome.exit_code == 0, outcome.output
    for words in ("oracle", "inlj", "tuples/s", "bypassing the page cache", "takes what it needs"):
        assert words in outcome.stdout


@pytest.mark.parametrize("name", ["rates.svg", "rates.png"])
def test_chart(tmp_path: Path, found: dict[str, Any], name: str) -> None:
    pytest.importorskip("vl_convert")
    (tmp_path / "result.json").write_text(json.dumps(found))
    outcome = run("chart", tmp_path / "result.json", tmp_path / name)
    assert outcome.exit_code == 0, outcome.output
    drawn = (tmp_path / name).read_bytes()
    assert drawn[:4] in (b"<svg", b"\x89PNG")
    if name.endswith("svg"):
        assert all(algorithm in drawn.decode() for algorithm in semistream.algorithms())


def test_chart_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    outcome = run("chart", tmp_path / "result.json", tmp_path / "a.svg")
    assert isinstance(outcome.exception, ResultFileError)
