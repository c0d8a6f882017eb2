"""`semistream init`: a pipeline file from a look at stream and relations, which is right as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("pyspark")

import semistream
from semistream.cli import app
from semistream.spark.pipeline.document import Document
from semistream.spark.pipeline.plan import PipelinePlan
from semistream.spark.pipeline.reading import read_plan


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("products", "stores"):
        semistream.Relation.build(pa.table({"id": [1, 2], "name": ["a", "b"]}), tmp_path / name, key="id").close()
    (tmp_path / "sales").mkdir()
    table = pa.table({"sale": [1], "product_id": [2], "Store": [1], "at": pa.array([0], pa.timestamp("us", "UTC"))})
    pq.write_table(table, tmp_path / "sales" / "0.parquet")
    return tmp_path


def run(place: Path, *more: Any) -> Result:
    arguments = ["init", place / "sales", place / "products", place / "stores", "--out", place / "p.toml", *more]
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def written(place: Path) -> PipelinePlan:
    document = Document(place / "p.toml", (place / "p.toml").read_text(), {})
    plan = read_plan(document)
    assert [str(problem) for problem in document.problems] == []
    return plan


def test_a_file_that_is_right(place: Path) -> None:
    outcome = run(place)
    assert outcome.exit_code == 0, (outcome.output, outcome.exception)
    assert "semistream run" in outcome.stdout
    plan = written(place)
    assert [(join.relation.name, join.on) for join in plan.joins] == [
        ("products", ("product_id",)),
        ("stores", ("Store",)),
    ]
    assert plan.source is not None
    assert plan.source.schema == "sale bigint, product_id bigint, Store bigint, at timestamp"
    assert "is there already" in str(run(place).exception)


def test_csv_and_keys_that_are_told(place: Path) -> None:
    (place / "sales" / "0.parquet").unlink()
    (place / "sales" / "0.csv").write_text("sale,article,shop,paid\n1,2,1,3.5\n")
    assert "which column of the stream is the key 'id'" in str(run(place).exception)
    assert "give one for each" in str(run(place, "--on", "article").exception)
    assert "no column 'artikel'" in str(run(place, "--on", "artikel", "--on", "shop").exception)
    assert not (place / "p.toml").exists()
    assert run(place, "--on", "article", "--on", "shop").exit_code == 0
    source = written(place).source
    assert source is not None
    assert (source.format, source.schema) == ("csv", "sale bigint, article bigint, shop bigint, paid double")
    assert source.options["header"] == "true"


def test_keys_of_csv_are_as_the_relation_has_them(place: Path) -> None:
    semistream.Relation.build(pa.table({"id": ["01", "02"]}), place / "stores", key="id", overwrite=True).close()
    (place / "sales" / "0.parquet").unlink()
    (place / "sales" / "0.tsv").write_text("sale\tproduct_id\tstore\tunit price\tnote\n1\t2\t01\t3.5\t\n")
    (place / "sales" / "_temporary.csv").write_text("")
    assert run(place).exit_code == 0
    source = written(place).source
    assert source is not None
    assert source.schema == "sale bigint, product_id bigint, store string, `unit price` double, note string"
    assert source.options["sep"] == "\t"


def test_keys_of_another_type_are_cast(place: Path) -> None:
    semistream.Relation.build(pa.table({"id": ["1", "2"]}), place / "stores", key="id", overwrite=True).close()
    assert run(place).exit_code == 0
    source = written(place).source
    assert source is not None
    assert source.derive == {"Store": "cast(Store as string)"}
