"""Files of a stream that wait: those there are, less those that the checkpoint has down as taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from semistream.spark.monitoring.files_left import FilesLeft


def test_files_that_wait(tmp_path: Path) -> None:
    sales, log = tmp_path / "sales of today", tmp_path / "check" / "sources" / "0"
    (sales / "day=1").mkdir(parents=True)
    left = FilesLeft(str(sales), tmp_path / "check")
    assert left() == 0
    for number in range(6):
        (sales / ("day=1" if number % 2 else "") / f"{number}.parquet").touch()
    (sales / ".hidden.parquet").touch()
    (sales / "_temporary").mkdir()
    (sales / "_temporary" / "7.parquet").touch()
    assert left() == 6, "no micro-batch has been planned"

    def planned(name: str, *numbers: int) -> None:
        log.mkdir(parents=True, exist_ok=True)
        files = [sales / ("day=1" if number % 2 else "") / f"{number}.parquet" for number in numbers]
        lines = [json.dumps({"path": file.as_uri(), "batchId": 0}) for file in files]
        (log / name).write_text("\n".join(["v1", *lines]))

    planned("0", 0, 1)
    (log / ".1.crc").touch()
    assert left() == 4
    planned("1.compact", 0, 1, 2)
    (log / "0").unlink()
    assert left() == 3
    assert FilesLeft(str(sales), tmp_path / "check")() == 3, "the same after a restart"
    assert FilesLeft(str(sales / "*.parquet"), tmp_path / "check")() == 1
    assert FilesLeft(str(sales), tmp_path / "check", "[34].*")() == 2
    assert FilesLeft("s3://bucket/sales", tmp_path / "check")() is None
    assert FilesLeft(str(sales / "{0,1}.parquet"), tmp_path / "check")() is None
