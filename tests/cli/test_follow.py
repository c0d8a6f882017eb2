"""``semistream follow``: the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner, Result

from followed_histories import IcebergHistory
from semistream.cli import app
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests

pytestmark = pytest.mark.slow


def semistream(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def rows(*keys: int) -> pa.Table:
    return pa.table({"id": list(keys), "name": [f"product {key}" for key in keys]})


def test_builds_follows_and_says_when_there_is_nothing_new(tmp_path):
    table, path = tmp_path / "table", tmp_path / "r"
    write_deltalake(table, rows(1, 2, 3))
    built = semistream("follow", table, path, "--key", "id", "--shards", 2)
    assert "Version 1 is commit 0: 3 rows" in built.output
    for key in (4, 5):
        write_deltalake(table, rows(key), mode="append")
    followed = semistream("follow", table, path).output
    assert "Version 2 is commit 1: 1 upserted, 0 deleted" in followed
    assert "1 commits behind" in followed
    assert "Version 3 is commit 2" in followed
    assert "has all commits" in semistream("follow", table, path).output
    assert len(manifests.load(path).shards) == 2
    listed = semistream("history", path)
    assert "commit" in listed.output
    assert [one["commit"] for one in json.loads(semistream("history", path, "--json").output)] == ["0", "1", "2"]
    assert "Version 4 is commit 2: 5 rows" in semistream("follow", table, path, "--rebuild").output


def test_iceberg(tmp_path):
    source = IcebergHistory(tmp_path, 3)
    options = [part for name, value in source.options.items() for part in ("--option", f"{name}={value}")]
    done = semistream("follow", "shop.products", tmp_path / "r", "--catalog", "test", "-k", "id", *options)
    assert "Version 1 is commit" in done.output
    with Relation.open(tmp_path / "r") as relation:
        assert relation.row_count == source.now().num_rows


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--option", "uri"], "cannot read --option 'uri' as NAME=VALUE; write it like --option type=sql"),
        (["--option", "uri=a", "--option", "uri=b"], "--option names 'uri' twice"),
        (["--port", "0"], "give --every SECONDS too"),
        (["--every", "-1"], "every"),
    ],
)
def test_mistakes(tmp_path, arguments, told):
    write_deltalake(tmp_path / "table", rows(1))
    done = semistream("follow", tmp_path / "table", tmp_path / "r", "--key", "id", *arguments)
    assert isinstance(done.exception, ValueError)
    assert told in str(done.exception)
    assert not (tmp_path / "r").exists()


def test_follows_until_interrupted_and_serves_its_lag(tmp_path):
    table, path = tmp_path / "table", tmp_path / "r"
    write_deltalake(table, rows(1))
    options = ["--key", "id", "--every", "0.1", "--port", "0"]
    started = "from semistream.cli import main; main()"
    command = [sys.executable, "-c", started, "follow", str(table), str(path), *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1]
            _wait_for(path, 1)
            write_deltalake(table, rows(2), mode="append")
            _wait_for(path, 2)
            page = urllib.request.urlopen(address, timeout=60).read().decode()
            assert f'semistream_follow_lag_commits{{relation="{path}"}}' in page
            assert "semistream_follow_lag_seconds" in page
        finally:
            process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=300)[0]
        assert process.returncode == 0
    assert "Version 2 is commit 1" in rest
    assert "stopped; the next follow continues here" in rest


def _wait_for(path: Path, version: int) -> None:
    deadline = time.monotonic() + 300
    while (manifests.latest(path) or 0) < version:
        assert time.monotonic() < deadline
        time.sleep(0.05)
