"""`semistream tune` and `semistream plan`: what they print, keep and draw, and what they refuse."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from typer.testing import CliRunner, Result

import semistream
from semistream.cli import app, main
from semistream.core.units import parse_bytes
from semistream.costs import load_constants, save_constants
from semistream.tuner import try_best
from semistream.workloads import ZipfKeys

pytestmark = pytest.mark.slow

ROWS = 40_000


@pytest.fixture(autouse=True)
def own_constants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMISTREAM_DATA", str(tmp_path / "data"))


@pytest.fixture(scope="module")
def relation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tune") / "relation"
    table = pa.table({"id": np.arange(ROWS), "name": pa.array([b"x" * 100] * ROWS, pa.binary(100))})
    semistream.Relation.build(table, path, key="id").close()
    return path


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sample") / "sales.parquet"
    keys = ZipfKeys(ROWS, 0.9, "random", seed=3).keys(0, 20_000)
    pyarrow.parquet.write_table(pa.table({"product": keys, "amount": np.arange(keys.size)}), path)
    return path


def run(*arguments: object, columns: int = 80) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": str(columns)})


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run as the installed program does; return the one message of exit code 2."""
    monkeypatch.setattr(sys, "argv", ["semistream", *(str(argument) for argument in arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    return " ".join(capsys.readouterr().err.split())


FEW = ("-a", "cachejoin", "-a", "meshjoin", "-a", "ssij")


def test_tune_recommends_one_and_fits_the_terminal(relation, sample):
    memory = semistream.Relation.open(relation).nbytes // 10  # exact: as a share it would hold all of so small an R
    found = run("tune", relation, "-m", memory, "--sample", sample, "--on", "product", *FEW, "--constants", "disk-2010")
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines if not line.startswith(("semistream.create(", "relation =")))
    assert "→ cachejoin" in found.stdout
    assert "Zipf 0.9" in found.stdout
    assert "a good fit" in found.stdout
    assert any(line.startswith("semistream.create('cachejoin', relation, on='product', memory=") for line in lines)
    assert "not measured on this machine" in found.stdout
    (join,) = tomllib.loads(found.stdout[found.stdout.index("[[join]]") :])["join"]
    assert (join["relation"], join["on"], join["algorithm"]) == (str(relation), "product", "cachejoin")
    assert parse_bytes(join["memory"]) > 0
    with semistream.Relation.open(relation) as opened:
        semistream.create(join["algorithm"], opened, on="id", memory=join["memory"], **join["options"])


def test_a_sample_of_real_files(relation, sample, tmp_path):
    """A key that needs a cast, text in a column that is not the key, and types that are told."""
    keys = pyarrow.parquet.read_table(sample)["product"]
    narrow = pa.table({"product": keys.cast(pa.int32()), "note": ["a"] * len(keys)})
    pyarrow.parquet.write_table(narrow, tmp_path / "narrow.parquet")
    rows = "".join(f"{key},007\n" for key in keys.to_pylist())
    (tmp_path / "sales.csv").write_text("product,store\n" + rows)
    for file, more in (("narrow.parquet", ()), ("sales.csv", ("--type", "store=string"))):
        found = run("tune", relation, "-m", "10%", "--sample", tmp_path / file, "--on", "product", *more, *FEW)
        assert found.exit_code == 0, (file, found.output, found.exception)
        assert "Zipf 0.9" in found.stdout
    # texts, some of which are no numbers, as streams have them; R's keys are integers
    texts = [*map(str, keys.to_pylist()), "abc", "1.7", None]
    pyarrow.parquet.write_table(pa.table({"product": texts}), tmp_path / "texts.parquet")
    found = run("tune", relation, "-m", "10%", "--sample", tmp_path / "texts.parquet", "--on", "product", *FEW)
    assert found.exit_code == 0, (found.output, found.exception)
    assert "Zipf 0.9" in found.stdout
    assert "2 rows of the sample have a key that is not of R's type, such as 'abc'" in " ".join(found.stderr.split())
    pyarrow.parquet.write_table(pa.table({"product": ["abc", "1.7"]}), tmp_path / "none.parquet")
    found = run("tune", relation, "-m", "10%", "--sample", tmp_path / "none.parquet", "--on", "product", *FEW)
    assert "the sample has only keys that are not of R's type, such as 'abc' (product int64)" in str(found.exception)
    (tmp_path / "wrong.csv").write_text("product\nabc\n")
    wrong = run("tune", relation, "-m", "10%", "--sample", tmp_path / "wrong.csv", "--on", "product", *FEW)
    assert "product" in str(wrong.exception)
    assert isinstance(wrong.exception, ValueError)


def test_what_tune_recommends_can_be_created(relation):
    found = run("tune", relation, "-m", "10%", "--exponent", "0.8", *FEW, "--json")
    assert found.exit_code == 0, found.output
    tuned = json.loads(found.stdout)
    assert tuned["exponent"] == 0.8
    assert {one["algorithm"] for one in tuned["predictions"]} == {"cachejoin", "meshjoin", "ssij"}
    with semistream.Relation.open(relation) as opened:
        join = semistream.create(
            tuned["recommended"], opened, on="id", memory=tuned["memory"], how="left", **tuned["options"]
        )
        assert sum(batch.num_rows for batch in join.process([pa.record_batch({"id": [1, 2, -1]})])) == 3


def test_measured_joins_are_recommended_by_what_they_served(relation, sample, tmp_path, monkeypatch):
    monkeypatch.setattr("semistream.tuner.try_best", functools.partial(try_best, seconds=0.1))
    found = json.loads(
        run("tune", relation, "-m", "5%", "--sample", sample, "--on", "product", *FEW, "--measure", "--json").stdout
    )
    assert len(found["measured"]) == 2
    assert found["recommended"] == max(found["measured"], key=found["measured"].get)
    # keys that no Zipf law describes: half of the tuples have one of ten keys, the others one of all
    keys = np.where(np.arange(20_000) % 2, np.arange(20_000) % 10, np.random.default_rng(1).integers(0, ROWS, 20_000))
    odd = tmp_path / "odd.parquet"
    pyarrow.parquet.write_table(pa.table({"id": keys}), odd)
    unasked = json.loads(run("tune", relation, "--memory", "5%", "--sample", odd, *FEW, "--json").stdout)
    assert not unasked["skew"]["fits"]
    assert unasked["recommended"] in unasked["measured"]


def test_measuring_needs_a_sample(relation, monkeypatch, capsys):
    assert "--sample" in refused(monkeypatch, capsys, "tune", relation, "--memory", "5%", "--measure")


@pytest.mark.parametrize("name", ["curve.png", "curve.svg"])
def test_the_curve_is_drawn(relation, tmp_path, name):
    image = tmp_path / name
    found = run("tune", relation, "-m", "10%", "-a", "cmeshjoin", "-a", "meshjoin", "--curve", image)
    assert found.exit_code == 0, found.output
    assert image.read_bytes()[:4] in (b"\x89PNG", b"<svg")


@pytest.fixture
def quick(monkeypatch):
    """Measure little."""
    from semistream.tuner import calibration, join_prices

    for name, value in (("_ROUNDS", 1), ("_ROWS", 50_000), ("_MANY_ROWS", 50_000), ("_BATCH", 5_000)):
        monkeypatch.setattr(calibration, name, value)
    small = {**calibration.calibrate.__kwdefaults__, "tuples": 1 << 13, "algorithms": ("inlj",)}
    monkeypatch.setattr(calibration.calibrate, "__kwdefaults__", small)
    shorter = {**join_prices.measure_joins.__kwdefaults__, "seconds": 0.05}
    monkeypatch.setattr(join_prices.measure_joins, "__kwdefaults__", shorter)


def test_calibrate_keeps_what_it_measures(quick):
    found = run("tune", "--calibrate", "--name", "here")
    assert found.exit_code == 0, found.output
    for symbol in ("c_H", "c_O", "c_E", "c_S", "c_A", "c_F", "S ", "T "):
        assert symbol in found.stdout
    kept = load_constants("here")
    assert kept.probe > 0
    assert kept.emit > 0
    assert kept.seek_seconds > 0
    assert kept.queued_seek_seconds <= kept.seek_seconds
    assert kept.factor("inlj") != 1.0
    assert "inlj" in found.stdout


def test_plan_says_what_a_cluster_needs():
    arguments = ("--relation-rows", "2G", "--row-bytes", "120", "--rate", "2M", "--zipf", "1", "--memory", "5%")
    costs = ("-a", "cmeshjoin", "--constants", "disk-2010")
    found = run("plan", *arguments, *costs)
    assert found.exit_code == 0, found.output
    assert all(len(line) <= 80 for line in found.stdout.splitlines())
    assert "hit ratio" in found.stdout
    planned = json.loads(run("plan", *arguments, *costs, "--json").stdout)
    assert planned["rate"] >= 2e6
    assert planned["shards"] * planned["memory_per_shard"] <= 0.05 * 2e9 * 120
    assert f"shards         {planned['shards']}," in found.stdout


def test_plan_for_machines_and_a_store(tmp_path: Path) -> None:
    """The more of R is on the machines' disks, the more a core can do; what is planned are whole machines."""
    disk = {"seek_seconds": 1e-4, "queued_seek_seconds": 1e-5, "transfer_seconds": 2e-6}
    costs = tmp_path / "fast.json"
    save_constants(dataclasses.replace(load_constants("disk-2010"), name="fast", **disk), costs)

    def planned(*more: str) -> dict[str, Any]:
        arguments = ["--relation-rows", "200M", "--rate", "50k", "--memory", "5%", "--cluster", "4x8"]
        done = run("plan", *arguments, "--constants", costs, "-a", "adaptivejoin", *more, "--json")
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    far, near = planned("--store-latency", "20ms"), planned("--store-latency", "20ms", "--local", "100%")
    assert far["rate_per_shard"] < near["rate_per_shard"]
    assert near["cluster"]["local_per_host"] == 200_000_000 * 120
    for found in (far, near):
        assert found["cluster"]["shards"] % 32 == 0
        assert found["cluster"]["shards"] >= found["shards"]
        assert found["cluster"]["memory_overhead"] > found["memory"]
    small = ["--relation-rows", "1M", "--rate", "1k", "--memory", "5%", "-a", "cmeshjoin"]
    text = run("plan", *small, "--cluster", "2x2").stdout
    assert "spark.executor.memoryOverhead=" in text


class TestRefusals:
    """One message each, and nothing is written."""

    def test_a_sample_without_the_key(self, relation, sample, tmp_path, monkeypatch, capsys):
        image = tmp_path / "curve.png"
        image.write_bytes(b"kept")
        message = refused(
            monkeypatch, capsys, "tune", relation, "-m", "5%", "--sample", sample, "--calibrate", "--curve", image
        )
        assert "'id'" in message
        assert "product" in message
        assert image.read_bytes() == b"kept"
        assert not (tmp_path / "data").exists()

    def test_too_small_a_budget(self, relation, tmp_path, monkeypatch, capsys):
        image = tmp_path / "curve.png"
        image.write_bytes(b"kept")
        message = refused(monkeypatch, capsys, "tune", relation, "-m", "1KB", "--curve", image)
        assert "too small for every algorithm" in message
        assert image.read_bytes() == b"kept"

    def test_too_small_a_budget_leaves_known_constants_as_they_are(
        self, relation, tmp_path, monkeypatch, capsys, quick
    ):
        message = refused(monkeypatch, capsys, "tune", relation, "-m", "1KB", "--calibrate")
        assert "too small for every algorithm" in message
        assert not (tmp_path / "data").exists()

    @pytest.mark.parametrize(
        ("arguments", "part"),
        [
            (("tune",), "--calibrate"),
            (("tune", "RELATION"), "--memory"),
            (("tune", "nowhere", "-m", "5%"), "nowhere"),
            (("tune", "RELATION", "-m", "5%", "--curve", "a.txt"), ".svg or .png"),
            (("tune", "RELATION", "-m", "5%", "-a", "nojoin"), "no cost model of 'nojoin'"),
            (("tune", "RELATION", "-m", "lots"), "'lots'"),
            (("tune", "RELATION", "-m", "5%", "--exponent", "-1"), "from 0 to 4, not -1"),
            (("tune", "RELATION", "-m", "5%", "--exponent", "99", "--calibrate"), "from 0 to 4, not 99"),
            (("tune", "RELATION", "-m", "5%", "--sample", "SAMPLE", "--exponent", "1"), "not both"),
            (("tune", "RELATION", "-m", "5%", "--constants", "nowhere"), "no constants named 'nowhere'"),
            (("plan", "--relation-rows", "many", "--rate", "1k", "--memory", "1GB"), "'many'"),
            (("plan", "--relation-rows", "1M", "--rate", "1k", "--memory", "10KB"), "too small"),
            (("plan", "--relation-rows", "1M", "--rate", "0", "--memory", "1GB"), "above zero"),
            (("plan", "--relation-rows", "1M", "--rate", "1k", "--memory", "1GB", "--cluster", "4"), "such as 4x8"),
            (("plan", "--relation-rows", "1M", "--rate", "1k", "--memory", "1GB", "--local", "1GB"), "--cluster"),
            (("plan", "--relation-rows", "1M", "--rate", "1k", "--memory", "1GB", "--zipf", "-1"), "exponent"),
        ],
    )
    def test_other_mistakes(self, relation, sample, monkeypatch, capsys, tmp_path, arguments, part):
        known = {"RELATION": relation, "SAMPLE": sample}
        message = refused(monkeypatch, capsys, *(known.get(one, one) for one in arguments))
        assert part in message
        assert not (tmp_path / "data").exists()
