"""``[filter]``: conditions on rows before and after the joins of a pipeline file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pytest
from typer.testing import CliRunner

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from pipeline_runs import run_reported
from semistream import Relation
from semistream.cli import app
from semistream.spark.monitoring.listening import BatchTotals
from semistream.spark.pipeline import PipelineError, load
from semistream.spark.pipeline.document import Document
from semistream.spark.pipeline.reading import read_plan

pytestmark = pytest.mark.spark

PIPELINE = """\
checkpoint = "check"
trigger = "available now"

[source]
format = "csv"
path = "stream"
schema = "id long, pieces int"
options = {{ header = true }}
on_malformed = "dead_letter"
derive = {{ half = "pieces / 2" }}

[filter]
{conditions}

[[join]]
relation = "r"
on = "id"
memory = "1MB"
on_missing = "dead_letter"

[derive]
cost = "pieces * price"

[sink]
format = "parquet"
path = "facts"

[dead_letters]
format = "parquet"
path = "letters"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Relation.build(pa.table({"id": [1, 2, 3], "price": [10, 20, None]}), tmp_path / "r", key="id").close()
    (tmp_path / "stream").mkdir()
    rows = ["1,4", "1,0", "2,4", "2,40", "3,6", "9,6", "9,0", "3,", "x,7"]
    (tmp_path / "stream" / "a.csv").write_text("\n".join(["id,pieces", *rows, ""]))
    return tmp_path


def written(folder: Path, *conditions: str) -> Path:
    (folder / "p.toml").write_text(PIPELINE.format(conditions="\n".join(conditions)))
    return folder / "p.toml"


def test_rows_that_do_not_meet_the_conditions_are_dropped(spark: SparkSession, folder: Path) -> None:
    totals = BatchTotals()
    path = written(folder, 'before = "half > 0"', 'after = "cost < 500 and price is not null"')
    run_reported(load(path), [totals])
    facts = pa.dataset.dataset(folder / "facts").to_table()
    assert sorted(zip(*facts.select(["id", "pieces", "cost"]).to_pydict().values(), strict=True)) == [
        (1, 4, 40),
        (2, 4, 80),
    ]
    letters = pa.dataset.dataset(folder / "letters").to_table().select(["id", "missing_in"]).to_pylist()
    assert sorted(letters, key=str) == [{"id": 9, "missing_in": "r"}, {"id": None, "missing_in": "source"}], (
        "a dead letter is no fact, and passes conditions on what it does not have"
    )
    assert (totals.rows, totals.joins["r"].totals.rows_in) == (9, 5)


def test_a_dead_letter_keeps_a_column_that_is_replaced_under_its_name_in_other_case(
    spark: SparkSession, folder: Path
) -> None:
    path = written(folder, 'before = "pieces >= 0"')
    path.write_text(path.read_text().replace("cost =", "Pieces ="))
    run_reported(load(path), [])
    facts = pa.dataset.dataset(folder / "facts").to_table()
    assert facts.column_names == ["id", "Pieces", "half", "price"], "Spark replaces the column"
    assert sorted(facts["Pieces"].drop_null().to_pylist()) == [0, 40, 80, 800]
    letters = pa.dataset.dataset(folder / "letters").to_table()
    assert sorted(letters.filter(pa.compute.field("missing_in") == "r")["pieces"].to_pylist(), key=str) == [0, 6]


def test_conditions_that_are_wrong_are_told_with_their_line(spark: SparkSession, folder: Path) -> None:
    path = written(folder, 'before = "cost > 0"', 'after = "pieces + 1"')
    with pytest.raises(PipelineError) as caught:
        load(path)
    told = {problem.line: problem.message for problem in caught.value.problems}
    assert set(told) == {13, 14}
    assert "`cost` cannot be resolved" in told[13], "it is derived after the joins"
    assert 'expected "BOOLEAN"' in told[14] or "not a boolean" in told[14]
    written(folder, 'after = "pieces > "')
    outcome = CliRunner().invoke(app, ["run", "--check", str(path)])
    assert "line 13: Syntax error" in str(outcome.exception)
    written(folder, 'before = "pieces > 0"', 'after = "price > 1"')
    assert "cost" in load(path).rows.columns


def test_a_table_without_conditions(folder: Path) -> None:
    for given, line, told in (
        ("", 12, "[filter] needs before or after"),
        ('befor = "pieces > 0"', 13, "[filter] has no 'befor'; did you mean 'before'?"),
        ("after = true", 13, "after must be text, not true or false"),
    ):
        path = written(folder, given)
        document = Document(path, path.read_text(), {})
        read_plan(document)
        found = {problem.line: problem.message for problem in document.problems}
        assert told in found[line]
