"""What older versions of PySpark lack: the substitutes give what the newest version gives."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import semistream
from semistream.errors import MissingExtraError, UnsupportedJoinError, UnsupportedVersionError
from semistream.spark import features, sales_source
from semistream.spark.joining.state_partitions import check_can_park
from semistream.spark.older.direct_partitions import to_partition
from semistream.spark.older.read_limits import Unlimited
from semistream.spark.older.whole_rows import WholeRows
from semistream.spark.sales_source import SalesOptions, _StreamReader
from semistream.spark.supported import check_pyspark


@pytest.mark.spark
@pytest.mark.parametrize("partitions", [1, 2, 7, 64])
def test_a_shuffle_by_hash_to_a_given_partition(spark: SparkSession, partitions: int) -> None:
    rows = spark.range(1000).select((F.col("id") % partitions).cast("int").alias("wanted"))
    sent = to_partition(rows, partitions, F.col("wanted")).withColumn("found", F.spark_partition_id())
    assert sent.where("wanted != found").isEmpty()
    assert sent.count() == 1000


@pytest.mark.spark
def test_whole_rows_give_what_columns_give(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    products = pa.table({"id": range(3000), "name": [f"product {number}" for number in range(3000)]})
    semistream.Relation.build(products, tmp_path / "products", key="id", shards=2).close()
    stores = pa.table({"id": range(7), "city": [f"city {number}" for number in range(7)]})
    semistream.Relation.build(stores, tmp_path / "stores", key="id").close()
    sales = spark.range(20_000).selectExpr("id AS sale", "id * 31 % 3500 AS product", "id % 8 AS store")

    def joined() -> DataFrame:
        held = semistream.join(sales, tmp_path / "stores", on="store", on_missing="dead_letter", hold=True)
        return semistream.join(held, tmp_path / "products", on="product", memory="50%", hold=False)

    columns = joined()
    monkeypatch.setattr(features, "_HAS_ARROW_UDFS", False)
    rows = joined()
    assert "MapInArrow" not in plan_of(columns)
    assert "MapInArrow" in plan_of(rows)
    assert rows.schema == columns.schema
    assert rows.exceptAll(columns).isEmpty()
    assert rows.count() == columns.count() == 20_000


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().optimizedPlan().toString())


@pytest.mark.spark
def test_parking_without_protobuf_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = spark.readStream.format("rate").load()
    check_can_park(stream)
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.proto.StateMessage_pb2", None)
    with pytest.raises(UnsupportedJoinError, match="protobuf in a version that PySpark accepts"):
        check_can_park(stream)


def test_answers_of_any_size_go_to_their_rows() -> None:
    def answering(arguments: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        held = pa.concat_arrays([column for (column,) in arguments])
        for begin, end in [(0, 1), (1, 1), (1, 6), (6, 9)]:
            yield held.slice(begin, end - begin)

    batches = [pa.record_batch({"a": part, "b": part}) for part in ([1, 2], [], [3, 4, 5, 6], [7], [8, 9])]
    added = WholeRows(answering, "answer", (1,), 1)(iter(pa.record_batch(part) for part in batches))
    found = pa.Table.from_batches(list(added)).to_pydict()
    assert found == {"a": [*range(1, 10)], "answer": [*range(1, 10)]}


def test_a_reader_limits_micro_batches_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sales_source, "time", SimpleNamespace(monotonic=lambda: 0.0))  # so that nothing arrives
    options = {"rows": "1000", "rowsPerBatch": "400"}
    reader = Unlimited(_StreamReader(SalesOptions.parse(options)))
    assert reader.latestOffset() == reader.latestOffset() == {"sale": 400}
    reader.partitions({"sale": 0}, {"sale": 400})
    assert reader.latestOffset() == {"sale": 800}
    paced = Unlimited(_StreamReader(SalesOptions.parse(options | {"rowsPerSecond": "1000"})))
    assert paced.latestOffset() == {"sale": 400}, "a run with availableNow asks once"
    paced.partitions({"sale": 0}, {"sale": 400})
    assert paced.latestOffset() == {"sale": 400}, "the others arrive later"
    restarted = Unlimited(_StreamReader(SalesOptions.parse(options)))
    restarted.partitions({"sale": 800}, {"sale": 800})
    assert restarted.latestOffset() == {"sale": 1000}


def test_unsupported_versions_are_reported_in_one_sentence() -> None:
    with pytest.raises(
        UnsupportedVersionError, match=r"^PySpark 3\.5\.9 is installed, but semistream needs 4\.0 to 4\.3"
    ):
        check_pyspark("3.5.9")
    with pytest.warns(UserWarning, match=r"PySpark 5\.0\.0 is installed, but semistream was tested with 4\.0 to 4\.3"):
        check_pyspark("5.0.0")
    with pytest.raises(MissingExtraError, match="pyspark is not installed"):
        check_pyspark(None)
    check_pyspark("4.0.5")
    check_pyspark("4.3.0.dev1")


def test_an_old_pyspark_is_reported_before_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("raise ImportError('no such thing')\n")
    (tmp_path / "pyspark" / "version.py").write_text('__version__: str = "3.5.9"\n')
    said = failing(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import semistream; semistream.join")
    assert "PySpark 3.5.9 is installed" in said
    assert "no such thing" not in said


def test_an_old_python_is_reported_first() -> None:
    said = failing("import sys; sys.version_info = (3, 10, 4, 'final', 0); import semistream")
    assert f"ImportError: semistream needs Python 3.11 or newer, but {sys.executable} is 3.10.4" in said


def failing(program: str) -> str:
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 1
    return run.stderr.strip().splitlines()[-1]
