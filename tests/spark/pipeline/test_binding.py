"""Checkpoints and sinks of other pipelines: refused before any row is marked as read and thrown away."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from semistream import Relation
from semistream.spark.pipeline import PipelineError, load, start
from semistream.spark.pipeline.document import Document
from semistream.spark.pipeline.reading import read_plan

PIPELINE = """checkpoint = "{checkpoint}"
trigger = "available now"
[source]
format = "parquet"
path = "{source}"
[[join]]
relation = "{relation}"
on = "id"
{missing}
[sink]
format = "parquet"
path = "{sink}"
"""


def write(folder: Path, **given: str) -> Path:
    """Write a pipeline file, and whatever relation and source it has."""
    names = {"checkpoint": "check", "source": "in", "relation": "r", "sink": "facts", "missing": "", **given}
    for name in ("in", "in2"):
        (folder / name).mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": [1, 2, 3]}), folder / name / "0.parquet")
    for name in ("r", "r2"):
        Relation.build(pa.table({"id": [1, 2], "v": [10, 20]}), folder / name, "id", shards=2, overwrite=True)
    path = folder / "pipeline.toml"
    path.write_text(PIPELINE.format(**names))
    return path


def refused(path: Path) -> dict[int, str]:
    """Return by line what is wrong with a pipeline."""
    with pytest.raises(PipelineError) as error:
        load(path)
    return {problem.line: problem.message for problem in error.value.problems}


@pytest.mark.spark
def test_checkpoints_and_sinks_of_others_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    def run(path: Path, *, adopt: bool = False) -> int:
        start(load(path, adopt=adopt)).awaitTermination()
        return spark.read.parquet(str(tmp_path / "facts")).count()

    assert run(write(tmp_path)) == 3
    assert run(write(tmp_path)) == 3, "its own checkpoint, again"
    # Spark would read all rows, mark them as read, and drop them: the sink's log has a batch 0.
    problems = refused(write(tmp_path, checkpoint="new"))
    assert list(problems) == [12]
    assert f"Give the checkpoint that it was written with (that is {tmp_path}/check)" in problems[12]
    assert not (tmp_path / "new").exists()
    (tmp_path / "facts/_semistream_checkpoint.json").unlink()
    assert 12 in refused(write(tmp_path, checkpoint="new")), "as a sink that was written by a query of another kind"
    # Spark would find nothing new in the source of another pipeline, and end well.
    for given, said in {
        ("source", "in2"): f"source was parquet {tmp_path}/in, and is parquet {tmp_path}/in2",
        ("relation", "r2"): f"relations was {tmp_path}/r, and is {tmp_path}/r2",
        ("sink", "facts2"): f"sink was parquet {tmp_path}/facts, and is parquet {tmp_path}/facts2",
    }.items():
        problems = refused(write(tmp_path, **dict([given])))
        assert list(problems) == [1]
        assert said in problems[1]
        assert "--adopt" in problems[1]
    # A relation was moved: it is the same pipeline all the same.
    pq.write_table(pa.table({"id": [1, 9]}), tmp_path / "in" / "1.parquet")
    assert run(write(tmp_path, relation="r2"), adopt=True) == 5
    assert run(write(tmp_path, relation="r2")) == 5
    # A checkpoint older than the sink, and one of a query that is no pipeline.
    shutil.copytree(tmp_path / "check", tmp_path / "old")
    (tmp_path / "old/offsets/1").unlink()
    (tmp_path / "facts/_semistream_checkpoint.json").unlink()
    assert "up to 1" in refused(write(tmp_path, relation="r2", checkpoint="old"))[12]
    (tmp_path / "check/_semistream/pipeline.json").unlink()
    assert "not by a pipeline file" in refused(write(tmp_path, relation="r2"))[1]
    # Facts and letters in one directory would overwrite each other.
    for letters in ("facts3", "facts3/letters", "file:" + str(tmp_path / "facts3")):
        extra = f'on_missing = "dead_letter"\n[dead_letters]\nformat = "parquet"\npath = "{letters}"'
        problems = refused(write(tmp_path, checkpoint="new", sink="facts3", missing=extra))
        assert "their own place" in " ".join(problems.values()), problems


def test_addresses_that_only_spark_could_use(tmp_path: Path) -> None:
    path = write(tmp_path, checkpoint="s3a://bucket/check", relation="webhdfs://node/r", source="s3a://bucket/in")
    document = Document(path, path.read_text(), {})
    plan = read_plan(document)
    assert sorted(problem.line for problem in document.problems) == [1, 7]
    assert all("mount" in problem.message for problem in document.problems)
    assert plan.source is not None
    assert plan.source.path == "s3a://bucket/in", "Spark reads that"
    local = write(tmp_path, relation=f"file://{tmp_path}/r")
    document = Document(local, local.read_text(), {})
    assert read_plan(document).joins[0].relation == tmp_path / "r"
