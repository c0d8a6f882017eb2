"""CSV and JSON streams: columns by the header, and malformed rows that are counted, told or kept apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pytest
from typer.testing import CliRunner

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pipeline_runs import run_reported
from semistream import Relation
from semistream.cli import app
from semistream.spark.monitoring.listening import BatchTotals
from semistream.spark.monitoring.prometheus import PrometheusPage
from semistream.spark.pipeline import PipelineError, load

pytestmark = pytest.mark.spark

PIPELINE = """\
checkpoint = "check"
trigger = "available now"

[source]
format = "{format}"
path = "stream"
schema = "{schema}"
{more}

[sink]
format = "parquet"
path = "facts"
"""
JOIN = """
[deduplicate]
columns = ["id"]
watermark = "at"
within = "1 hour"

[[join]]
relation = "r"
on = "id"
memory = "1MB"
how = "inner"

[dead_letters]
format = "parquet"
path = "letters"
"""
SCHEMA = "at timestamp, name string, id long"
SALES = """\
id,note,name,at
1,x,"",2024-03-10 02:30:00.000001
2,x,,2024-03-10 04:30:00+02:00
2,x,again,2024-03-10 04:30:00+02:00
7,x,no partner,2024-03-10 02:30:00Z
three,x,a,2024-03-10 02:30:00
4,x,a,2024-03-10 02:30:00.1234567
5,a
"""


def place(folder: Path, text: str, *, name: str = "csv", schema: str = SCHEMA, more: str = "", end: str = "") -> Path:
    (folder / "stream").mkdir(parents=True)
    (folder / "stream" / f"a.{name}").write_text(text)
    (folder / "p.toml").write_text(PIPELINE.format(format=name, schema=schema, more=more) + end)
    return folder / "p.toml"


def run(path: Path) -> tuple[BatchTotals, str]:
    totals, page = BatchTotals(), PrometheusPage(0)
    run_reported(load(path), [totals, page])
    return totals, page.text()


def rows(folder: Path, key: str = "id") -> list[dict[str, Any]]:
    found = pa.dataset.dataset(folder, format="parquet").to_table().to_pylist()
    return sorted(found, key=lambda row: str(row[key]))


def told(path: Path) -> dict[int, str]:
    with pytest.raises(PipelineError) as failure:
        load(path)
    return {problem.line: problem.message for problem in failure.value.problems}


def test_csv_by_its_header_and_malformed_rows_as_dead_letters(spark: SparkSession, tmp_path: Path) -> None:
    Relation.build(pa.table({"id": range(6), "price": range(6)}), tmp_path / "r", key="id").close()
    more = 'options = { header = true }\non_malformed = "dead_letter"'
    totals, page = run(place(tmp_path, SALES, more=more, end=JOIN))
    facts = rows(tmp_path / "facts")
    assert list(facts[0]) == ["at", "name", "id", "price"], "the columns of the schema, in its order"
    assert [(row["id"], row["name"], row["price"]) for row in facts] == [(1, "", 1), (2, None, 2)]
    assert [row["at"].isoformat() for row in facts] == ["2024-03-10T02:30:00.000001+00:00", "2024-03-10T02:30:00+00:00"]
    letters = rows(tmp_path / "letters", "malformed")
    assert list(letters[0]) == ["at", "name", "id", "malformed", "missing_in"]
    assert [row["malformed"] for row in letters] == [
        "4,x,a,2024-03-10 02:30:00.1234567", "5,a", "three,x,a,2024-03-10 02:30:00",
    ]  # fmt: skip
    assert {row["missing_in"] for row in letters} == {"source"}
    assert (totals.rows, totals.malformed) == (7, 3)
    assert 'semistream_malformed_rows_total{query="p"} 3' in page


def test_malformed_rows_stop_the_query_unless_told_otherwise(spark: SparkSession, tmp_path: Path) -> None:
    lines = (
        '{"id": 1, "name": "a"}\n{"id": "x"}\n\n{"id": 2, "more": 0}\n{"id": 3, "at": "2024-01-01 00:00:00.1234567"}\n'
    )
    for way, kept in {"fail": None, "drop": [1, 2], "null": [1, 2, 3, None]}.items():
        more = f'on_malformed = "{way}"' if way != "fail" else ""
        folder = tmp_path / way
        path = place(folder, lines, name="json", more=more)
        if kept is None:
            said = r'MalformedRowError: file:.*a\.json: this row is malformed: {"id": "x"}; correct it, or set in'
            with pytest.raises(StreamingQueryException, match=said):
                run(path)
            continue
        totals, _ = run(path)
        assert [row["id"] for row in rows(folder / "facts")] == kept
        assert totals.malformed == 2


def test_summary_tells_of_malformed_rows(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)  # it is the tests' own
    path = place(tmp_path, "id\n1\nx\n", schema="id long", more='options = { header = true, mode = "DROPMALFORMED" }')
    outcome = CliRunner().invoke(app, ["run", str(path)], env={"COLUMNS": "160"})
    assert outcome.exit_code == 0, outcome.output
    assert "1 rows, dropped" in outcome.output


def test_headers_that_do_not_fit(spark: SparkSession, tmp_path: Path) -> None:
    named = "options = { header = true }"
    path = place(tmp_path / "a", "id,nome\n1,a\n", schema="name string, id long", more=named)
    assert "has no column 'name'; did you mean 'nome'?" in told(path)[7]
    path = place(tmp_path / "b", "id,id\n1,a\n", schema="id long", more=named)
    assert "two columns called 'id'" in told(path)[7]
    path = place(tmp_path / "c", "id,name\n1,a\n", schema="name string, id long")
    assert "options = { header = true }" in told(path)[4]
    path = place(tmp_path / "d", "id\n1\n", schema="id long", more=named)
    (tmp_path / "d" / "stream" / "b.csv").write_text("other,id\n1,2\n")
    with pytest.raises(StreamingQueryException, match=r"error while reading file .*b\.csv"):
        run(path)
    (tmp_path / "e").mkdir()
    path = place(tmp_path / "e", "", schema="id long", more=named)
    path.write_text(path.read_text().replace('"stream"', '"nowhere"'))
    assert "nowhere" in told(path)[6]
