"""Pipelines from their files: the examples, and mistakes that only Spark finds."""

from __future__ import annotations

import csv
import importlib.util
import json
import shlex
import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from pipeline_runs import run_reported
from semistream import Relation
from semistream.cli import app
from semistream.spark.monitoring.listening import BatchReport, BatchTotals, JsonLines
from semistream.spark.monitoring.prometheus import PrometheusPage
from semistream.spark.pipeline import PipelineError, load
from semistream.workloads import MasterTable

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(autouse=True)
def _settings(spark: SparkSession) -> Iterator[None]:
    """A pipeline's session is the tests' own here; leave its settings as they were."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)


def example(name: str, folder: Path) -> Path:
    """Copy an example, so that what it makes is gone with the test."""
    made = shutil.ignore_patterns("out", "relations")
    return Path(shutil.copytree(EXAMPLES / name, folder / name, ignore=made))


def build_orders(place: Path) -> None:
    """Build the relations as the head of the example says."""
    head = (place / "pipeline.toml").read_text().splitlines()
    commands = [shlex.split(line[1:]) for line in head if "semistream build" in line]
    assert len(commands) == 3
    for _, command, source, target, *rest in commands:
        arguments = [command, str(place / source), str(place / target), *rest]
        assert CliRunner().invoke(app, arguments).exit_code == 0


def run(path: Path) -> tuple[Any, BatchTotals]:
    """Run a pipeline to its end, with the statistics that it asks for."""
    pipeline = load(path)
    totals = BatchTotals()
    reports: list[BatchReport] = [totals]
    if pipeline.plan.statistics.file:
        reports.append(JsonLines(pipeline.plan.statistics.file))
    return run_reported(pipeline, reports), totals


def rows_of(path: Path) -> dict[Any, dict[str, str]]:
    with open(path, newline="") as file:
        return {row[next(iter(row))]: row for row in csv.DictReader(file)}


def expected_orders(place: Path) -> dict[int, tuple[Any, ...]]:
    """The example, row by row in plain Python."""
    products = rows_of(place / "data/products.csv")
    customers = rows_of(place / "data/customers.csv")
    stores = rows_of(place / "data/stores.csv")
    facts = {}
    for file in sorted((place / "stream").glob("*.json")):
        for order in map(json.loads, file.read_text().splitlines()):
            product = products.get((order["product"] or "").strip().upper())
            customer = customers.get(str(order["customer"]))
            store = stores.get(order["store"])
            total = None
            if product:
                share = 100 - (int(customer["discount"]) if customer else 0)
                total = (order["pieces"] * Decimal(product["price"]) * share / 100).quantize(
                    Decimal("0.01"), "ROUND_HALF_UP"
                )
            facts[order["order_id"]] = (
                int(product["product_key"]) if product else -1,
                int(customer["customer_key"]) if customer else -1,
                product["name"] if product else None,
                customer["city"] if customer else None,
                store["city"] if store else None,
                total,
            )
    return facts


def test_example_of_orders(spark: SparkSession, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    place = example("orders", tmp_path)
    build_orders(place)
    _, totals = run(place / "pipeline.toml")
    table = DeltaTable(place / "out/facts").to_pyarrow_table()
    assert table.schema.names[:6] == ["order_id", "at", "product_key", "customer_key", "store", "pieces"]
    found = table.to_pylist()
    assert len(found) == 60, "orders that came twice are there once"
    assert {
        row["order_id"]: (
            row["product_key"], row["customer_key"], row["name"], row["city"], row["city_of_store"], row["total"],
        )
        for row in found
    } == expected_orders(place)  # fmt: skip
    assert totals.rows == 64
    assert set(totals.joins) == {"products", "customers", "stores"}
    assert totals.joins["products"].totals.rows_in == 60
    assert totals.joins["products"].missing.most()
    lines = [json.loads(line) for line in (place / "out/statistics.jsonl").read_text().splitlines()]
    assert sum(line["rows"] for line in lines) == 64
    assert sum(line["joins"].get("stores", {}).get("rows_out", 0) for line in lines) == 60
    # Started again there is nothing to do, and nothing changes.
    run(place / "pipeline.toml")
    assert DeltaTable(place / "out/facts").to_pyarrow_table().num_rows == 60


@pytest.mark.long
def test_dead_letters_are_the_rows_that_came_in(spark: SparkSession, tmp_path: Path) -> None:
    place = example("orders", tmp_path)
    build_orders(place)
    path = place / "pipeline.toml"
    text = path.read_text().replace(
        'columns = ["name", "price"]', 'columns = ["name", "price"]\non_missing = "dead_letter"'
    )
    text = text.replace('columns = ["city"]  ', 'columns = ["city"]\non_missing = "drop"  ').replace("delta", "parquet")
    text = text.replace("[statistics]\n", "[statistics]\nmissing_keys = false\n")
    path.write_text(text + '[dead_letters]\nformat = "delta"\npath = "out/letters"\n')
    _, totals = run(path)
    assert totals.joins["products"].totals.unmatched > 0
    assert totals.joins["products"].missing.most() == {}, "whose keys they were is nobody's business here"
    assert '"missing": {"' not in (place / "out/statistics.jsonl").read_text()
    from deltalake import DeltaTable

    stores = rows_of(place / "data/stores.csv")
    expected = expected_orders(place)
    orders = {
        order["order_id"]: order for file in (place / "stream").glob("*.json")
        for order in map(json.loads, file.read_text().splitlines())
    }  # fmt: skip
    facts = spark.read.parquet(str(place / "out/facts"))
    assert "missing_in" not in facts.columns
    unknown = {number for number, row in expected.items() if row[0] == -1}
    assert unknown
    known = {number for number, order in orders.items() if number not in unknown and order["store"] in stores}
    assert sorted(row.order_id for row in facts.collect()) == sorted(known)
    letters = DeltaTable(place / "out/letters").to_pyarrow_table()
    assert letters.schema.names == ["order_id", "at", "product", "customer", "store", "pieces", "missing_in"]
    assert {row["order_id"]: (row["product"], row["customer"]) for row in letters.to_pylist()} == {
        number: ((orders[number]["product"] or "").strip().upper() or None, orders[number]["customer"])
        for number in unknown
    }
    assert set(letters["missing_in"].to_pylist()) == {"products"}


@pytest.mark.long
def test_example_of_sales(spark: SparkSession, tmp_path: Path) -> None:
    place = example("sales", tmp_path)
    spec = importlib.util.spec_from_file_location("masters", place / "masters.py")
    assert spec is not None
    assert spec.loader is not None
    masters = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(masters)
    masters.make(place)
    _, totals = run(place / "pipeline.toml")
    assert totals.batches == 3
    facts = spark.read.parquet(str(place / "out/facts"))
    assert facts.columns[:4] == ["sale_id", "product_id", "store_id", "region"]
    options = {"size": 20_000, "rows": 60_000, "absentShare": 0.02, "nullShare": 0.005, "stores": 400, "seed": 7,
               "rowsPerSecond": 10_000}  # fmt: skip
    sales = spark.read.format("semistream-sales").options(**options).load()
    master = MasterTable(20_000, order="shuffled", seed=7).table().select(["product_id", "price"])
    prices = spark.createDataFrame(master)
    plain = sales.where("store_id < 350").join(prices, "product_id", "left").selectExpr("sale_id", "quantity * price")
    assert sorted(facts.select("sale_id", "revenue").collect()) == sorted(plain.collect())
    memory = sum(statistics.memory for statistics in totals.joins.values())
    assert 0 < memory <= 4_000_000


RELATION = {"id": range(100), "name": [f"n{i}" for i in range(100)], "key": range(1000, 1100)}
PIPELINE = """\
checkpoint = "out/check"
trigger = "{trigger}"

[source]
format = "rate"

[source.derive]
id = "value"

[[join]]
relation = "r"
on = "{on}"
memory = "{memory}"
columns = ["{column}"]

[derive]
text = "{expression}"
more = "{other}"

[sink]
format = "parquet"
path = "out/facts"
columns = ["{kept}"]
"""
FINE = {
    "trigger": "5 seconds", "on": "id", "column": "name", "expression": "upper(name)", "other": "value + 1",
    "kept": "text", "memory": "1MB",
}  # fmt: skip


def problems(folder: Path, **changes: str) -> dict[int, str]:
    import pyarrow as pa

    if not (folder / "r").exists():
        Relation.build(pa.table(RELATION), folder / "r", key="id").close()
    path = folder / "p.toml"
    path.write_text(PIPELINE.format(**(FINE | changes)))
    outcome = None
    try:
        load(path)
    except PipelineError as error:
        outcome = error
    found = {problem.line: problem.message for problem in outcome.problems} if outcome else {}
    assert outcome is None or len(found) == len(outcome.problems), outcome
    assert not (folder / "out").exists()
    return found


def test_what_only_spark_knows_is_told_with_its_line(spark: SparkSession, tmp_path: Path) -> None:
    assert problems(tmp_path) == {}
    found = problems(tmp_path, on="product", expression="upper(name", other="value +* 1")
    assert set(found) == {12, 17, 18}
    assert "product" in found[12]
    assert "Syntax error" in found[17]
    found = problems(tmp_path, column="title", kept="texture")
    assert "no column 'title'; there are name, key" in found[14]
    assert set(found) == {14}, "what follows from a mistake is not told"
    assert "no column 'texture'; there are timestamp" in problems(tmp_path, kept="texture")[23]
    found = problems(tmp_path, expression="upper(nome)", other="missing + 1")
    assert "`nome`" in found[17]
    assert "4 KB" in problems(tmp_path, memory="4KB")[13] or "4,000" in problems(tmp_path, memory="4KB")[13]
    assert "speed" in problems(tmp_path, memory='1MB"\noptions.speed = "11')[14]
    found = problems(tmp_path, memory='1MB"\nsurrogate = "key"\nunknown = "3.7')
    assert "unknown is '3.7', which the surrogate column 'key' of type bigint cannot hold exactly" in found[15]
    assert problems(tmp_path, memory='1MB"\nsurrogate = "key"\nunknown = -1\nalgorithm = "adaptivejoin') == {}
    found = problems(tmp_path, memory='1MB"\nsurrogate = "key"\nunknown = 3.7\nalgorithm = "adaptivejoin')
    assert "unknown is 3.7" in found[15]
    found = problems(tmp_path, memory='1MB"\noptions.window = 100\noptions.on_overload = "shed')
    assert "on_overload='shed' does not work on Spark" in found[15]
    # Keys that do not fit, with the cast to write.
    found = problems(tmp_path, on="timestamp")
    assert "timestamp" in found[12]


def test_a_relation_joined_twice_needs_a_prefix(spark: SparkSession, tmp_path: Path) -> None:
    again = 'name"]\n\n[[join]]\nrelation = "r"\nname = "again"\non = "value"\n{}columns = ["name'
    twice = 'name"]\n\n[[join]]\nrelation = "r"\nname = "third"\non = "value"\n{}columns = ["name'
    found = problems(tmp_path, column=again.format("") + twice[4:].format(""))
    assert set(found) == {22}
    assert "'name' would be called 'name_right' in the result" in found[22]
    assert "give the join a prefix other than ''" in found[22]
    prefixed = again.format('prefix = "a_"\n') + twice[4:].format('prefix = "b_"\n')
    assert problems(tmp_path, column=prefixed, expression="concat(name, a_name, b_name)") == {}


def test_check_prints_all_problems(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('[source]\nformat = "rate"\n\n[sink]\nformat = "console"\npath = "x"\n')
    outcome = CliRunner().invoke(app, ["run", "--check", str(tmp_path / "p.toml")])
    assert isinstance(outcome.exception, PipelineError)
    assert [str(problem) for problem in str(outcome.exception).splitlines()[1:]] == [
        "  line 1: the file needs checkpoint",
        "  line 6: [sink] has no 'path'; use one of format, columns, options",
    ]


def test_prometheus_page(spark: SparkSession) -> None:
    import urllib.request

    page = PrometheusPage(0)
    try:
        with pytest.raises(OSError, match=f"port {page.port} of the loopback"):
            PrometheusPage(page.port)
        counters = {"tasks": 2, "bytes_held": 10, "memory": 20}
        from semistream.core.statistics import JoinStatistics

        counters |= JoinStatistics(rows_in=5, rows_out=4).as_dict()
        for number in range(3):
            batch = {"query": 'a "b"', "query_id": "i", "batch": number, "rows": 5, "malformed": 1}
            page.add(batch | {"seconds": {"triggerExecution": 0.5}, "joins": {"products": counters}})
        with urllib.request.urlopen(f"http://127.0.0.1:{page.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    finally:
        page.close()
    assert 'semistream_input_rows_total{query="a \\"b\\""} 15' in text
    assert 'semistream_malformed_rows_total{query="a \\"b\\""} 3' in text
    assert 'semistream_join_rows_in_total{join="products",query="a \\"b\\""} 15' in text
    assert 'semistream_join_bytes_held{join="products",query="a \\"b\\""} 10' in text
    assert "# TYPE semistream_batch_seconds_total counter" in text
