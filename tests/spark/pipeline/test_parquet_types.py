"""Parquet streams whose files have other types than the pipeline file says."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pipeline_runs import run_reported
from semistream import Relation
from semistream.cli.console import errors, print_error
from semistream.spark.pipeline import PipelineError, load

pytestmark = pytest.mark.spark

PIPELINE = """\
checkpoint = "check"
trigger = "available now"

[source]
format = "parquet"
path = "stream"
schema = "{schema}"

[[join]]
relation = "r"
on = "id"
memory = "1MB"

[sink]
format = "parquet"
path = "facts"
"""
FILE = pa.table({
    "id": pa.array([1], pa.int32()), "code": ["a"], "share": [0.5], "day": pa.array([0], pa.date32()), "tags": [[1]],
})  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Relation.build(pa.table({"id": [1, 2], "name": ["a", "b"]}), tmp_path / "r", key="id").close()
    (tmp_path / "stream").mkdir()
    return tmp_path


def written(folder: Path, schema: str) -> Path:
    (folder / "p.toml").write_text(PIPELINE.format(schema=schema))
    return folder / "p.toml"


def test_types_that_the_files_do_not_have_are_told_with_column_and_both_types(
    spark: SparkSession, folder: Path
) -> None:
    assert load(written(folder, "id long, code long")).rows.columns == ["id", "code", "name"], "there is no file yet"
    pq.write_table(FILE, folder / "stream" / "0.parquet")
    assert load(written(folder, "id long, CODE string, more int")).rows.columns == ["id", "CODE", "more", "name"], (
        "Spark reads an int as a long, names in any case, and a column that is not there as NULL"
    )
    with pytest.raises(PipelineError) as caught:
        load(written(folder, "id long, code long, share int, day date, tags array<string>"))
    (problem,) = caught.value.problems
    assert problem.line == 7
    told = (
        f"column 'code' is bigint here and string in the files at {folder / 'stream'}; write code string in schema, "
        'and if it is to be bigint, code_as_bigint = "try_cast(code as bigint)" under [source.derive]'
    )
    assert told in problem.message
    assert "column 'share' is int here and double in" in problem.message
    assert "column 'tags' is array<string> here and array<bigint> in" in problem.message
    assert "'day'" not in problem.message
    assert "'id'" not in problem.message


def test_a_file_of_another_type_that_comes_later(spark: SparkSession, folder: Path) -> None:
    pq.write_table(FILE.select(["id", "code"]), folder / "stream" / "0.parquet")
    pipeline = load(written(folder, "id int, code string"))
    pq.write_table(pa.table({"id": [1], "code": [7]}), folder / "stream" / "1.parquet")
    with pytest.raises(StreamingQueryException) as caught:
        run_reported(pipeline, [])
    with errors.capture() as shown:
        print_error(caught.value)
    told = " ".join(shown.get().split())
    assert "1.parquet" in told
    assert "Parquet column [" in told
    assert "the file's type differs from [source]: write the file's type in schema" in told
    assert "damaged" not in told
