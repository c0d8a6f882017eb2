"""`semistream init`: a pipeline file from a look at stream and relations, which is right as it is."""

from __future__ import annotations

import re
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
    assert "exists already" in str(run(place).exception)


@pytest.mark.parametrize("column", ["number", "Product", "product_id", "ProductId", "products_number", "number_id"])
def test_a_column_that_is_named_nearly_as_the_key(place: Path, column: str) -> None:
    table = pa.table({"number": [1, 2]})
    semistream.Relation.build(table, place / "products", key="number", overwrite=True).close()
    pq.write_table(pa.table({"sale": [1], column: [2], "store": [1]}), place / "sales" / "0.parquet")
    assert run(place).exit_code == 0
    assert written(place).joins[0].on == (column,)


def test_csv_and_keys_that_are_told(place: Path) -> None:
    (place / "sales" / "0.parquet").unlink()
    (place / "sales" / "0.csv").write_text("sale,article,shop,paid\n1,2,1,3.5\n")
    assert "which column of the stream is the key 'id'" in str(run(place).exception)
    assert "give one --on per relation" in str(run(place, "--on", "article").exception)
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


def test_keys_of_another_type_are_cast_under_another_name(place: Path) -> None:
    semistream.Relation.build(pa.table({"id": ["1", "2"]}), place / "stores", key="id", overwrite=True).close()
    assert run(place).exit_code == 0
    plan = written(place)
    assert plan.source is not None
    assert plan.source.derive == {"Store_as_string": "try_cast(Store as string)"}
    assert [join.on for join in plan.joins] == [("product_id",), ("Store_as_string",)]


@pytest.mark.parametrize(
    ("ours", "theirs", "suggested"),
    [
        (pa.int64(), pa.float64(), "case when product_id = try_cast(product_id as bigint) then"),
        (pa.int32(), pa.decimal128(9, 2), "case when product_id = try_cast(product_id as int) then"),
        (pa.decimal128(9, 1), pa.decimal128(9, 2), "case when product_id = try_cast(product_id as decimal(9,1))"),
        (pa.date32(), pa.timestamp("us", "UTC"), "try_cast(product_id as date)"),
        (pa.decimal128(9, 2), pa.string(), "try_cast(product_id as decimal(9,2))"),
    ],
    ids=str,
)
def test_no_cast_that_makes_a_key_of_what_is_none(
    place: Path, ours: pa.DataType, theirs: pa.DataType, suggested: str
) -> None:
    semistream.Relation.build(pa.table({"id": pa.nulls(1, ours)}), place / "products", key="id", overwrite=True).close()
    table = pa.table({"product_id": pa.nulls(1, theirs), "store": [1]})
    pq.write_table(table, place / "sales" / "0.parquet")
    outcome = run(place)
    assert outcome.exit_code == 0, (outcome.output, outcome.exception)
    assert "To decide: product_id is" in outcome.stdout
    text = (place / "p.toml").read_text()
    document = Document(place / "p.toml", text, {})
    assert read_plan(document).source.derive == {}, "no cast of its own accord"  # type: ignore[union-attr]
    # as the file says: its line, and the join on that column
    (name,) = re.findall(r'and on = "(\w+)"', text)
    decided = text.replace(f'# "{name}" = ', f'"{name}" = ').replace('on = "product_id" ', f'on = "{name}" ')
    (place / "p.toml").write_text(decided)
    plan = written(place)
    assert suggested in plan.source.derive[name]  # type: ignore[union-attr]
    assert plan.joins[0].on == (name,)


@pytest.mark.parametrize("theirs", [pa.string(), pa.uint64(), pa.decimal128(12, 0)], ids=str)
def test_what_is_a_number_in_other_words_is_read_as_one(place: Path, theirs: pa.DataType) -> None:
    pq.write_table(pa.table({"product_id": pa.nulls(1, theirs), "store": [1]}), place / "sales" / "0.parquet")
    assert run(place).exit_code == 0
    plan = written(place)
    assert plan.source is not None
    assert plan.source.derive == {"product_id_as_bigint": "try_cast(product_id as bigint)"}
    assert plan.joins[0].on == ("product_id_as_bigint",)


def test_a_key_of_several_columns(place: Path) -> None:
    stock = pa.table({"store": [1], "day": ["mon"], "left": [3]})
    semistream.Relation.build(stock, place / "stores", key=["store", "day"], overwrite=True).close()
    table = pa.table({"product_id": [2], "Store": [1], "stores_day": ["mon"], "place": ["1"], "when": ["mon"]})
    pq.write_table(table, place / "sales" / "0.parquet")
    assert run(place).exit_code == 0
    assert [join.on for join in written(place).joins] == [("product_id",), ("Store", "stores_day")]
    (place / "p.toml").unlink()
    told = str(run(place, "--on", "product_id", "--on", "Store").exception)
    assert (
        "has 2 columns, store, day, but --on Store names 1; name one column of the stream for each, separated by comm"
        in told
    )
    assert run(place, "--on", "product_id", "--on", "place, when").exit_code == 0
    plan = written(place)
    assert plan.joins[1].on == ("place_as_bigint", "when"), "the column of another type is cast, the other is not"
    assert plan.source is not None
    assert plan.source.derive == {"place_as_bigint": "try_cast(place as bigint)"}
    (place / "p.toml").unlink()
    pq.write_table(table.drop_columns(["stores_day"]), place / "sales" / "0.parquet")
    told = str(run(place).exception)
    assert "is the key 'day' of" in told
    assert "with --on, for all of store, day; the stream has product_id, Store" in told


def test_keys_of_several_columns_in_csv_are_as_the_relation_has_them(place: Path) -> None:
    stock = pa.table({"store": ["01"], "shelf": [1]})
    semistream.Relation.build(stock, place / "stores", key=["store", "shelf"], overwrite=True).close()
    (place / "sales" / "0.parquet").unlink()
    (place / "sales" / "0.csv").write_text("sale,product_id,store,shelf\n1,2,01,7\n")
    assert run(place).exit_code == 0
    plan = written(place)
    assert plan.source is not None
    assert plan.source.schema == "sale bigint, product_id bigint, store string, shelf bigint"
    assert plan.joins[1].on == ("store", "shelf")


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            "string",
            pa.int64(),
            "is cast to string, but the key 'id' of stores is now int64; remove the cast, and join on",
        ),
        ("int", pa.int64(), 'is now int64; write code_as_bigint = "try_cast(code as bigint)" in its place'),
        ("decimal(9,2)", pa.decimal128(12, 2), r'is now decimal128(12, 2); write code_as_decimal_12_2 = "try_cast('),
        ("bigint", pa.int32(), None),
        ("int", pa.int32(), None),
    ],
    ids=str,
)
def test_a_cast_to_a_type_that_the_key_had_before(
    place: Path, before: str, after: pa.DataType, told: str | None
) -> None:
    types = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "decimal(9,2)": pa.decimal128(9, 2)}
    theirs = pa.int64() if before == "string" else pa.string()
    pq.write_table(pa.table({"product_id": [1], "code": pa.nulls(1, theirs)}), place / "sales" / "0.parquet")
    build = semistream.Relation.build
    build(pa.table({"id": pa.nulls(1, types[before])}), place / "stores", key="id", overwrite=True).close()
    assert run(place, "--on", "product_id", "--on", "code").exit_code == 0
    text = (place / "p.toml").read_text()
    if "# To decide" in text:
        name = re.findall(r'and on = "(\w+)"', text)[0]
        text = text.replace(f'# "{name}" = ', f'"{name}" = ').replace('on = "code" ', f'on = "{name}" ')
        (place / "p.toml").write_text(text)
    written(place)
    build(pa.table({"id": pa.nulls(1, after)}), place / "stores", key="id", overwrite=True).close()
    document = Document(place / "p.toml", text, {})
    read_plan(document)
    if told is None:
        assert document.problems == []
        return
    (problem,) = document.problems
    assert told in problem.message
    assert "code_as" in text.splitlines()[problem.line - 1]


@pytest.mark.parametrize("csv", [False, True], ids=["parquet", "csv"])
def test_two_relations_may_want_one_column_as_two_types(place: Path, csv: bool) -> None:
    semistream.Relation.build(pa.table({"id": ["01", "02"]}), place / "stores", key="id", overwrite=True).close()
    if csv:
        (place / "sales" / "0.parquet").unlink()
        (place / "sales" / "0.csv").write_text("code\n01\n")
    else:
        pq.write_table(pa.table({"code": ["01"]}), place / "sales" / "0.parquet")
    outcome = run(place, "--on", "code", "--on", "code")
    assert outcome.exit_code == 0, (outcome.output, outcome.exception)
    plan = written(place)
    assert plan.source is not None
    assert plan.source.schema == "code string", "01 is another text than 1"
    assert plan.source.derive == {"code_as_bigint": "try_cast(code as bigint)"}
    assert [join.on for join in plan.joins] == [("code_as_bigint",), ("code",)]


def test_csv_keys_that_are_not_as_the_relation_has_them(place: Path) -> None:
    (place / "sales" / "0.parquet").unlink()
    (place / "sales" / "0.csv").write_text("product_id,store\n1.5,1\n")
    assert "To decide: product_id is double" in run(place).stdout
    (place / "p.toml").unlink()
    (place / "sales" / "0.csv").write_text("product_id,store\nabc,1\n")
    assert run(place, "--type", "store=string").exit_code == 0
    source = written(place).source
    assert source is not None
    assert source.schema == "product_id string, store string"
    assert list(source.derive) == ["product_id_as_bigint", "store_as_bigint"]
