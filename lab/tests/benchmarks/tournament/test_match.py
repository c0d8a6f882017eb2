"""The benchmark beside peers: who takes part, what is checked, kept and refused."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

import semistream
from semistream.cli import app
from semistream_lab.benchmarks.peers import contestant, contestants
from semistream_lab.benchmarks.peers.cached_store import CachedStore
from semistream_lab.benchmarks.tournament import match
from semistream_lab.benchmarks.tournament.match import bench_peers
from semistream_lab.benchmarks.tournament.peer_spec import PeerSpec, chosen, sweep
from semistream_lab.cli.bench.peer_charts import peer_chart

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("match")]  # one run for all

OPTIONS = ("--rows", 20_000, "--batch", 2_000, "--batches", 2, "--warm-up", 1, "--memory", "400KB", "--fill", 4_000)
SMALL = PeerSpec(rows=20_000, batch_rows=2_000, batches=2, warm_up=1, memory="400KB", fill=4_000)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("peers")


def run(directory: Path, *arguments: object) -> Result:
    asked = ["bench", "peers", "--dir", str(directory), *(str(argument) for argument in arguments)]
    return CliRunner().invoke(app, asked, env={"COLUMNS": "100"})


PART = ("adaptivejoin", "inlj", "duckdb", "sqlite", "device_limit")


@pytest.fixture(scope="module")
def found(directory: Path) -> dict[str, Any]:
    """One run of some, by the command; that everybody joins rightly is tested with the contestants."""
    result = run(directory, *OPTIONS, "--only", ",".join(PART), "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.long
def test_all_take_part_and_are_right(found: dict[str, Any]) -> None:
    (point,) = found["points"]
    assert found["skipped"] == {}
    assert (point["wrong"], point["failed"]) == ({}, {})
    assert set(point["rates"]) == set(PART)
    assert all(rate > 0 for rate in point["rates"].values())
    assert (point["rows"], point["memory"], point["zipf"], point["batch"]) == (20_000, "400KB", 1.0, 2_000)
    assert point["shape"] == "random"
    for name, one in point["contestants"].items():
        assert len(one["seconds"]) == 2, name
        assert point["kinds"][name] == one["kind"]


def test_the_memory_limit_is_stated(found: dict[str, Any]) -> None:
    (point,) = found["points"]
    assert "RLIMIT_DATA" in found["limit"] or "cgroup" in found["limit"]
    for name, one in point["contestants"].items():
        assert (one.get("limit") is not None) == contestant(name).bounded
        assert one["grew"] <= point["allowed_bytes"] or not contestant(name).bounded, name


def test_the_device_reads_what_no_cache_can_have(found: dict[str, Any]) -> None:
    """Every other contestant that counts pages reads at least as many."""
    (point,) = found["points"]
    least = point["contestants"]["device_limit"]["pages_a_batch"]
    assert least > 0
    for name in ("inlj", "adaptivejoin"):
        assert point["contestants"][name]["pages_a_batch"] >= least


def test_raw_results_and_a_picture_are_kept(directory: Path, found: dict[str, Any]) -> None:
    (raw,) = (directory / "results").glob("peers-*.json")
    assert json.loads(raw.read_text()) == found
    assert "adaptivejoin" in raw.with_suffix(".svg").read_text()
    assert len(peer_chart(found)["concat"]) == 1


@pytest.mark.long
def test_data_is_made_once_and_points_are_swept(directory: Path, found: dict[str, Any]) -> None:
    before = {path: path.stat().st_mtime_ns for path in directory.glob("20000x128-seed-1/*")}
    result = run(directory, *OPTIONS, "--only", "device_limit", "--sweep", "zipf=0,1.2")
    assert result.exit_code == 0, result.output
    assert {path: path.stat().st_mtime_ns for path in directory.glob("20000x128-seed-1/*")} == before
    assert "Zipf 0 (random)" in result.output
    assert "Zipf 1.2 (random)" in result.output
    assert "Memory limit: " in result.output


def test_points_of_a_sweep_that_is_interrupted_are_kept(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, points = match._Match.held, []

    def second_never_ends(self: match._Match) -> dict[str, Any]:
        if points:
            raise KeyboardInterrupt
        points.append(held(self))
        return points[0]

    monkeypatch.setattr(match._Match, "held", second_never_ends)
    result = run(directory, *OPTIONS, "--only", "device_limit", "--sweep", "zipf=0,1.2", "--output", tmp_path)
    assert result.exit_code != 0
    (raw,) = tmp_path.iterdir()
    kept = json.loads(raw.read_text())
    assert kept["points"] == json.loads(json.dumps(points))
    assert kept["planned"] == 2


@pytest.mark.long
def test_a_missing_package_is_named_and_left_out(
    directory: Path, found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "lmdb" else there(name))
    result = run(directory, *OPTIONS, "--only", "lmdb", "--only", "device_limit")
    assert result.exit_code == 0, result.output
    assert "lmdb is not installed; run: pip install 'semistream-lab[peers]'" in " ".join(result.output.split())
    result = run(directory, *OPTIONS, "--only", "lmdb")
    assert "lmdb is not installed" in str(result.exception)


def test_wrong_answers_are_not_rated(directory: Path, found: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is right is made wrong, which is the same to the contestants."""
    right = match.right_answer

    def other(batch: pa.RecordBatch, data: Any) -> Any:
        answer = right(batch, data)
        answer.sum ^= 1
        return answer

    monkeypatch.setattr(match, "right_answer", other)
    result = bench_peers([PeerSpec(**{**SMALL.__dict__, "only": ("sqlite",)})], directory)
    assert result["points"][0]["rates"] == {}
    assert "not those of R" in result["points"][0]["wrong"]["sqlite"]


def test_one_that_fails_is_out_and_the_others_go_on(directory: Path, found: dict[str, Any], tmp_path: Path) -> None:
    (directory / "20000x128-seed-1" / "sqlite-8192.db").rename(tmp_path / "away")
    try:
        (directory / "20000x128-seed-1" / "sqlite-8192.db").write_bytes(b"no database")
        result = run(directory, *OPTIONS, "--only", "sqlite,device_limit", "--json")
    finally:
        (tmp_path / "away").replace(directory / "20000x128-seed-1" / "sqlite-8192.db")
    assert result.exit_code == 1
    (point,) = json.loads(result.stdout)["points"]
    assert list(point["rates"]) == ["device_limit"]
    assert "Error" in point["failed"]["sqlite"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rows", 0), "rows must be at least 1"),
        (("--memory", "much"), "'much'"),
        (("--shape", "round"), "'round'"),
        (("--only", "rocksbd"), "rocksdb"),
        (("--sweep", "colour=red"), "cannot be swept"),
        (("--sweep", "zipf="), "names no values"),
        (("--sweep", "zipf=steep"), "'steep'"),
        (("--sweep", "batch=10q"), "'10q'"),
        (("--batches", 0), "batches must be at least 1"),
        (("--cgroup", "/nowhere"), "/nowhere is not a memory cgroup"),
    ],
)
def test_mistakes_are_explained(
    directory: Path, found: dict[str, Any], options: tuple[object, ...], words: str
) -> None:
    result = run(directory, *OPTIONS, "--only", "inlj", *options)
    assert result.exit_code != 0
    assert words in " ".join(f"{result.output} {result.exception}".split())


def test_names_and_points() -> None:
    unasked = {name for name in contestants() if contestant(name).if_asked}
    assert unasked == {"adaptivejoin_plain", "adaptivejoin_unfiltered", "lookup", "quix_sqlite", "spark"}
    assert set(PeerSpec().names) == set(contestants()) - unasked
    assert set(semistream.algorithms()) < set(PeerSpec().names)
    assert "adaptivejoin" not in chosen(["papers"])
    assert "oracle" not in chosen(["papers"])
    assert chosen(["duckdb, lmdb", "duckdb"]) == ("duckdb", "lmdb")
    points = sweep(SMALL, ["rows=1M,10M", "memory=1%,5%"])
    assert [(point.rows, point.memory) for point in points] == [
        (1_000_000, "1%"), (1_000_000, "5%"), (10_000_000, "1%"), (10_000_000, "5%"),
    ]  # fmt: skip
    assert all(issubclass(contestant(name), CachedStore) for name in ("sqlite", "lmdb", "rocksdb"))


@pytest.mark.long
def test_a_catalogue_with_absent_keys(directory: Path) -> None:
    """Rows of any width, a third of the stream without a match; stores of fixed rows do not take part."""
    only = ("adaptivejoin", "duckdb", "device_limit")
    result = run(directory, *OPTIONS, "--layout", "catalogue", "--absent", 0.33, "--only", ",".join(only), "--json")
    assert result.exit_code == 0, result.output
    (point,) = json.loads(result.stdout)["points"]
    assert (point["layout"], point["absent"]) == ("catalogue", 0.33)
    assert set(point["rates"]) == set(only)
    assert point["wrong"] == {}
    assert 200 < point["row_bytes"] < 260
    assert "sqlite" not in PeerSpec(layout="catalogue").names
    with pytest.raises(ValueError, match="one width"):
        PeerSpec(layout="catalogue", only=("sqlite",))
