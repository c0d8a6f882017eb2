"""`semistream bench store`, with a store in this process."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from packed_builds import builds_as_released
from s3_server import S3Server
from semistream.cli import app


def test_a_store_is_measured_beside_a_directory(s3: S3Server, tmp_path: Path) -> None:
    given = ["bench", "store", "s3://bucket/bench", "--rows", "60000", "--batch", "2000", "--batches", "2"]
    given += ["--warm-up", "1", "--memory", "10%", "--dir", str(tmp_path), "--json"]
    found = json.loads(CliRunner().invoke(app, given).stdout)
    places = found["places"]
    assert list(places) == ["a directory", "all", "a quarter", "nothing"]
    assert places["a directory"]["times_directory"] == 1
    assert places["all"]["requests"] == 0
    assert places["nothing"]["local_pages"] == 0 < places["a quarter"]["local_pages"]
    assert 1 <= places["nothing"]["fetched_of_wanted"] <= 4
    assert not list(tmp_path.glob("tier-*"))
    put = [request for request in s3.requests if request[0] in ("PUT", "POST")]
    shown = CliRunner().invoke(app, [*given[:-1], "--tier", "nothing"]).stdout
    assert "÷ needed" in shown
    assert "…" not in shown, "80 columns are enough"
    assert [request for request in s3.requests if request[0] in ("PUT", "POST")] == put, "R is there"


def test_a_quarter_of_the_unpacked_bytes_holds_most_of_a_packed_relation(s3: S3Server, tmp_path: Path) -> None:
    given = ["bench", "store", "s3://bucket/bench", "--layout", "catalogue", "--rows", "30000", "--batch", "2000"]
    given += [
        "--batches",
        "3",
        "--warm-up",
        "8",
        "--memory",
        "1MB",
        "--dir",
        str(tmp_path),
        "--tier",
        "a quarter",
        "--json",
    ]
    with builds_as_released():
        found = json.loads(CliRunner().invoke(app, given).stdout)
    quarter = found["places"]["a quarter"]
    assert 0.5 * quarter["pages"] < quarter["local_pages"], "with packed bytes it would be a quarter of the pages"


@pytest.mark.parametrize(
    ("given", "says"), [(["memory"], "not an address in an object store"), (["s3://b/x", "--tier", "half"], "half")]
)
def test_bad_input_is_told(given: list[str], says: str, tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["bench", "store", *given, "--rows", "2000", "--dir", str(tmp_path)])
    assert found.exit_code == 1
    assert says in str(found.exception)


def test_two_runs_do_not_share_their_tiers(tmp_path: Path) -> None:
    other = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        given = ["bench", "store", "s3://bucket/bench", "--rows", "2000", "--dir", str(tmp_path)]
        found = CliRunner().invoke(app, given)
    finally:
        os.close(other)
    assert found.exit_code == 1
    assert "another run of bench store" in str(found.exception)
