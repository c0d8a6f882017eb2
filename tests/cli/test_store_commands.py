"""Commands and pipeline files take addresses of stores."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from s3_server import S3Server
from semistream.cli import app

R = "s3://bucket/products"


def run(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def test_commands_take_addresses(s3: S3Server, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(2000), "name": [f"n{i}" for i in range(2000)]}), tmp_path / "r.parquet")
    pq.write_table(pa.table({"id": [1], "name": ["one"]}), tmp_path / "change.parquet")
    pq.write_table(pa.table({"id": [2]}), tmp_path / "gone.parquet")
    run("build", tmp_path / "r.parquet", R, "--key", "id", "--page-size", "1024")
    run("upsert", tmp_path / "change.parquet", R)
    run("delete", tmp_path / "gone.parquet", R)
    run("compact", R)
    assert "4" in run("history", R)
    said = run("inspect", R, "--check", "--json")
    found = json.loads(said[said.index("{") :])
    assert (found["path"], found["rows"], found["faults"]) == (R, 1999, [])
    assert "Nothing is damaged" in run("repair", R)
    for key, (content, *_) in list(s3.objects.items()):
        s3.put(key.replace("products/", "copy/"), content)
    index = next(key for key in s3.objects if key.startswith("products/") and key.endswith(".map"))
    s3.put(index, b"damaged")
    assert "proved by copy" in run("repair", R, "--from", "s3://bucket/copy")
    run("vacuum", R)
    assert "hybridjoin" in run("tune", R, "--memory", "100KB", "--algorithm", "hybridjoin")


def test_an_address_that_cannot_be_is_refused(s3: S3Server) -> None:
    assert "webhdfs" in run("inspect", "webhdfs://name/r", code=2)


def test_a_pipeline_file_names_a_store(s3: S3Server, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from semistream.relation.relation import Relation
    from semistream.spark.pipeline.document import Document
    from semistream.spark.pipeline.reading import read_plan

    Relation.build(pa.table({"id": range(10)}), R, "id").close()
    text = f"""
checkpoint = "check"
[source]
format = "parquet"
path = "in"
schema = "id long"
[[join]]
relation = "{R}"
on = "id"
local = "2GB"
[sink]
format = "parquet"
path = "out"
"""
    plan = read_plan(Document(tmp_path / "pipeline.toml", text))
    assert str(plan.joins[0].relation) == R
    assert plan.joins[0].local == 2_000_000_000
