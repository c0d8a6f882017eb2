"""Addresses of object stores are refused wherever a path is taken; ``file:`` is the local path it means."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import semistream
from semistream.cli.app import app
from semistream.core.errors import UnsupportedPathError
from semistream.core.paths import local_path
from semistream.relation.damage.repair import repair
from semistream.relation.relation import Relation

ROWS = pa.table({"id": [1, 2], "name": ["apple", "fig"]})
REMOTE = ("ftp://host/r", "webhdfs://node:9000/r", "swift://host/r", Path("webhdfs://node/r"), "file://host/r")


@pytest.mark.parametrize("path", REMOTE, ids=repr)
def test_what_is_not_local_is_refused(path: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    calls: dict[str, Callable[[], object]] = {
        "build": lambda: Relation.build(ROWS, path, "id"),
        "open": lambda: Relation.open(path),
        "upsert": lambda: semistream.upsert(path, ROWS),
        "delete": lambda: semistream.delete(path, pa.array([1])),
        "compact": lambda: semistream.compact(path),
        "history": lambda: semistream.history(path),
        "vacuum": lambda: semistream.vacuum(path),
        "repair": lambda: repair(path),
    }
    for name, call in calls.items():
        with pytest.raises(UnsupportedPathError, match="mount"):
            print(name, call())
    assert list(tmp_path.iterdir()) == []


def test_a_file_address_is_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    for address in (f"file://{tmp_path}/a%20b", f"file:{tmp_path}/a b", f"FILE://localhost{tmp_path}/a b"):
        assert local_path(address) == folder
    Relation.build(ROWS, folder.as_uri(), "id")
    assert semistream.upsert(folder.as_uri(), ROWS) == 2
    assert Relation.open(folder.as_uri()).path == folder


def test_commands_refuse_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    run = CliRunner().invoke
    source = (tmp_path / "rows.parquet").as_uri()
    for arguments in (
        ["build", "rows.parquet", "ftp://host/r", "--key", "id"],
        ["inspect", "webhdfs://node/r"],
        ["upsert", "rows.parquet", "ftp://host/r"],
        ["history", "ftp://host/r"],
        ["vacuum", "ftp://host/r"],
        ["repair", "ftp://host/r"],
        ["tune", "ftp://host/r"],
        ["run", "s3a://bucket/pipeline.toml"],
    ):
        result = run(app, arguments)
        assert result.exit_code == 2, arguments
        assert "mount" in result.output + str(result.exception), arguments
    assert [file.name for file in tmp_path.iterdir()] == ["rows.parquet"]
    assert run(app, ["build", source, (tmp_path / "r").as_uri(), "--key", "id"]).exit_code == 0
    assert Relation.open(tmp_path / "r").row_count == 2
