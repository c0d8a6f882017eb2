from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from _pytest.mark import ParameterSet

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import semistream
from semistream.core.errors import (
    BudgetTooSmallError,
    KeyColumnError,
    KeyTypeError,
    NotARelationError,
    UnknownAlgorithmError,
    UnsupportedJoinError,
)
from semistream.joins import find
from semistream.spark.relations.types import UnsupportedTypeError

pytestmark = pytest.mark.spark

SALES = "id long, amount decimal(10,2), at timestamp, note string"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("join")


@pytest.fixture(scope="module")
def products(spark: SparkSession) -> DataFrame:
    """R: one to three rows a key, every third column NULL somewhere."""
    return spark.range(3000).selectExpr(
        "if(id % 50 = 49, null, id * id % 1709) AS id",
        "concat('product ', id) AS name",
        "if(id % 3 = 0, null, date_add(date'2020-01-01', cast(id AS int))) AS since",
        "timestamp'2024-01-01 00:00:00.123456' + make_dt_interval(0, id) AS at",
        "if(id % 7 = 0, null, array(named_struct('rank', cast(id AS int), 'tag', cast(id AS string)))) AS tags",
        "map(cast(id AS string), id % 2 = 0) AS flags",
    )


@pytest.fixture(scope="module")
def relation(products: DataFrame, folder: Path) -> str:
    semistream.spark.build(products, folder / "products", key="id", shards=3, page_size=1024)
    return str(folder / "products")


@pytest.fixture(scope="module")
def sales_files(spark: SparkSession, folder: Path) -> str:
    """The stream: two files, keys that are in R, that are not, and NULL."""
    path = folder / "sales"
    for part in range(2):
        rows = spark.range(part * 1000, part * 1000 + 1000).selectExpr(
            "if(id % 41 = 0, null, pmod(id * 7919, 2000)) AS id",
            "cast(id / 7 AS decimal(10,2)) AS amount",
            "timestamp'2024-06-01' + make_dt_interval(0, 0, 0, id) AS at",
            "if(id % 11 = 0, null, repeat(cast(id AS string), 3)) AS note",
        )
        rows.coalesce(1).write.mode("append").parquet(str(path))
    return str(path)


@pytest.fixture(scope="module")
def sales(spark: SparkSession, sales_files: str) -> DataFrame:
    return spark.read.schema(SALES).parquet(sales_files)


@pytest.fixture(scope="module")
def expected(sales: DataFrame, products: DataFrame) -> dict[str, Counter[str]]:
    """What Spark's own join of the same data says."""
    renamed = products.withColumnRenamed("id", "r").withColumnRenamed("at", "at_right")
    return {how: rows(sales.join(renamed, sales["id"] == renamed["r"], how).drop("r")) for how in ("inner", "left")}


def rows(frame: DataFrame) -> Counter[str]:
    table = frame.toArrow()
    return Counter(repr(row) for row in table.to_pylist())


def start(frame: DataFrame, folder: Path) -> StreamingQuery:
    """Start a streaming query of all that is there now, into Parquet."""
    return (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("path", str(folder / "facts"))
        .trigger(availableNow=True)
        .start()
    )


def run_stream(frame: DataFrame, folder: Path) -> int:
    """Run a streaming query to its end; return how many micro-batches it took."""
    query = start(frame, folder)
    query.awaitTermination()
    return 1 + max(progress["batchId"] for progress in query.recentProgress)


def algorithms_and_hows() -> Iterator[ParameterSet]:
    """Yield all joins. Spark knows joins by these traits only: one join of each kind is not long.

    A join that keeps the order of the stream runs inner and left. Any other runs one of both, in turns: how it treats
    rows without a match is checked without Spark, by the conformance suite.
    """
    seen = set()
    for number, algorithm in enumerate(semistream.algorithms()):
        kind = find(algorithm)
        traits = (kind.bounded, kind.in_order, kind.mixes, kind.keeps_cache, kind.deterministic)
        for how in ("inner", "left") if kind.in_order else [("inner", "left")[number % 2]]:
            yield pytest.param(algorithm, how, marks=[pytest.mark.long] if traits in seen and not kind.in_order else [])
        seen.add(traits)


@pytest.mark.sampled
@pytest.mark.parametrize(("algorithm", "how"), [*algorithms_and_hows()])
def test_streaming_query_equals_sparks_batch_join(
    spark: SparkSession,
    relation: str,
    sales_files: str,
    expected: dict[str, Counter[str]],
    tmp_path: Path,
    algorithm: str,
    how: str,
) -> None:
    stream = spark.readStream.schema(SALES).option("maxFilesPerTrigger", 1).parquet(sales_files)
    enriched = semistream.join(stream, relation, on="id", how=how, memory="1MB", algorithm=algorithm)
    assert enriched.isStreaming
    assert enriched.columns == ["id", "amount", "at", "note", "name", "since", "at_right", "tags", "flags"]
    assert run_stream(enriched, tmp_path) == 2
    assert rows(spark.read.parquet(str(tmp_path / "facts"))) == expected[how]


def test_a_stopped_query_goes_on_from_its_checkpoint(
    spark: SparkSession, relation: str, sales: DataFrame, expected: dict[str, Counter[str]], tmp_path: Path
) -> None:
    for part in range(2):
        sales.where(f"coalesce(id % 2, 0) = {part}").coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
        stream = spark.readStream.schema(SALES).parquet(str(tmp_path / "in"))
        run_stream(semistream.join(stream, relation, on="id", how="left", memory="1MB"), tmp_path)
    assert rows(spark.read.parquet(str(tmp_path / "facts"))) == expected["left"]


@pytest.mark.parametrize("how", ["inner", "left"])
def test_batch_frame_through_transform(
    sales: DataFrame, relation: str, expected: dict[str, Counter[str]], how: str
) -> None:
    opened = semistream.Relation.open(relation)
    enriched = sales.transform(semistream.join, opened, on="id", how=how, memory="5MB")
    assert rows(enriched) == expected[how]


def test_result_keeps_sparks_types(sales: DataFrame, relation: str, products: DataFrame) -> None:
    enriched = semistream.join(sales, relation, on="id", memory="1MB")
    types = dict(enriched.dtypes)
    for name, kind in products.dtypes[1:]:
        assert types["at_right" if name == "at" else name] == kind


def test_empty_stream(spark: SparkSession, relation: str) -> None:
    empty = spark.createDataFrame([], "id long")
    assert semistream.join(empty, relation, on="id", memory="1MB").count() == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("r_key", "s_key"),
    [
        ("id", "cast(id AS int)"),  # widened
        ("cast(id AS int)", "id * if(id % 2 = 0, 1, 10000000000)"),  # too large for R's type: absent, no error
        ("cast(id AS string)", "cast(id AS string)"),
        ("cast(cast(id AS string) AS binary)", "cast(cast(id AS string) AS binary)"),
        ("cast(id AS decimal(30,2))", "cast(id AS decimal(12,2))"),
        ("cast(id AS decimal(12,2))", "cast(id AS decimal(12,2))"),
        ("date_add(date'2000-01-01', cast(id AS int))", "date_add(date'2000-01-01', cast(id AS int))"),
        ("timestamp'2000-01-01' + make_dt_interval(id)", "timestamp'2000-01-01' + make_dt_interval(id)"),
        ("timestamp_ntz'2000-01-01' + make_dt_interval(id)", "timestamp_ntz'2000-01-01' + make_dt_interval(id)"),
    ],
)
def test_kinds_of_key(spark: SparkSession, tmp_path: Path, r_key: str, s_key: str) -> None:
    r = spark.range(500).selectExpr(f"{r_key} AS k", "id AS payload")
    s = spark.range(0, 1000, 3).selectExpr(f"{s_key} AS key", "id AS sale")
    semistream.spark.build(r, tmp_path / "r", key="k", shards=2)
    enriched = semistream.join(s, tmp_path / "r", on="key", how="left", memory="1MB")
    expected = s.join(r, s["key"] == r["k"], "left").drop("k")
    assert rows(enriched) == rows(expected)
    assert enriched.where("payload IS NOT NULL").count() > 50


def test_several_key_columns_with_other_names(spark: SparkSession, tmp_path: Path) -> None:
    r = spark.range(1000).selectExpr("id % 10 AS a", "cast(id div 10 AS string) AS b", "id AS payload")
    s = spark.range(0, 1500, 7).selectExpr(
        "cast(if(id % 5 = 0, null, id div 10) AS string) AS `the.b`", "cast(id % 10 AS int) AS `an a`", "id AS sale"
    )
    semistream.spark.build(r, tmp_path / "r", key=["a", "b"], shards=3)
    enriched = semistream.join(s, tmp_path / "r", on=["an a", "the.b"], how="left", memory="1MB")
    assert enriched.columns == ["the.b", "an a", "sale", "payload"]
    expected = s.join(r, (s["`the.b`"] == r["b"]) & (s["an a"] == r["a"]), "left").drop("a", "b")
    assert rows(enriched) == rows(expected)


def test_relation_built_without_spark(spark: SparkSession, tmp_path: Path) -> None:
    moment = datetime.datetime(2024, 1, 1, 12, 0, 0, 250000)
    table = pa.table(
        {
            "id": pa.array([1, 2, 3], pa.uint32()),
            "big": pa.array([2**64 - 1, None, 0], pa.uint64()),
            "half": pa.array([1.5, None, 2.5], pa.float16()),
            "word": pa.array(["x", "y", None]).dictionary_encode(),
            "seen": pa.array([moment, None, moment], pa.timestamp("ms", "Europe/Paris")),
            "code": pa.array([b"abcd", None, b"efgh"], pa.binary(4)),
            "many": pa.array([[1, 2], None, []], pa.large_list(pa.uint8())),
        }
    )
    local = semistream.Relation.build(table, tmp_path / "r", key="id", shards=2)
    s = spark.createDataFrame([(1,), (2,), (3,), (-1,), (None,)], "id long")
    enriched = semistream.join(s, local, on="id", how="left", memory="1MB")
    assert dict(enriched.dtypes)["big"] == "decimal(20,0)"
    got = {row["id"]: row for row in enriched.toArrow().to_pylist()}
    assert len(got) == 5
    assert got[1]["big"] == 2**64 - 1
    assert (got[1]["half"], got[1]["word"], got[1]["code"], got[1]["many"]) == (1.5, "x", b"abcd", [1, 2])
    assert got[1]["seen"].timestamp() == table.column("seen")[0].as_py().timestamp()
    assert all(got[2][name] is None for name in ("big", "half", "seen", "code", "many"))
    assert got[-1]["word"] is None
    unsupported = semistream.Relation.build(
        pa.table({"id": [1], "span": pa.array([(1, 2, 3)], pa.month_day_nano_interval())}), tmp_path / "u", key="id"
    )
    with pytest.raises(UnsupportedTypeError, match=r"column 'span' of the relation is month_day_nano_interval"):
        semistream.join(s, unsupported, on="id", memory="1MB")


def test_names_that_differ_only_in_case_get_the_suffix(spark: SparkSession, tmp_path: Path) -> None:
    semistream.spark.build(spark.range(5).selectExpr("id", "id AS Price"), tmp_path / "r", key="id", shards=2)
    s = spark.range(5).selectExpr("id", "-id AS price")
    assert semistream.join(s, tmp_path / "r", on="id", memory="1MB").columns == ["id", "price", "Price_right"]
    assert semistream.join(s, tmp_path / "r", on="id", memory="1MB", suffix="_r").columns[-1] == "Price_r"


def test_metrics_count_every_row_once(
    spark: SparkSession, relation: str, sales_files: str, expected: dict[str, Counter[str]], tmp_path: Path
) -> None:
    stream = spark.readStream.schema(SALES).option("maxFilesPerTrigger", 1).parquet(sales_files)
    enriched = semistream.join(stream, relation, on="id", how="left", memory="1MB", metrics="products")
    query = start(enriched, tmp_path)
    query.awaitTermination()
    assert rows(spark.read.parquet(str(tmp_path / "facts"))) == expected["left"]
    statistics = semistream.spark.stream_statistics(query, "products")
    assert statistics.batches == 2
    assert statistics.tasks == 6
    assert statistics.totals.rows_in == statistics.totals.rows_done == 2000
    assert statistics.totals.rows_out == expected["left"].total()
    assert statistics.totals.null_keys == 49
    assert statistics.totals.pages_read > 0
    assert 0 < statistics.bytes_held <= statistics.memory <= 1_000_000


def test_metrics_of_a_batch_frame(sales: DataFrame, relation: str, expected: dict[str, Counter[str]]) -> None:
    observation = Observation("products")
    enriched = semistream.join(sales, relation, on="id", memory="1MB", metrics=observation)
    assert rows(enriched) == expected["left"], "no row is lost by default"
    assert (semistream.spark.counters_of(observation.get) or {})["rows_in"] == 2000
    # Without a single result the counters are there all the same.
    observation = Observation("none")
    absent = sales.selectExpr("-id - 1 AS id")
    assert semistream.join(absent, relation, on="id", how="inner", memory="1MB", metrics=observation).count() == 0
    counters = semistream.spark.counters_of(observation.get) or {}
    assert (counters["rows_in"], counters["rows_out"]) == (2000, 0)


def test_downstream_of_a_watermark(spark: SparkSession, relation: str, sales_files: str, tmp_path: Path) -> None:
    stream = spark.readStream.schema(SALES).option("maxFilesPerTrigger", 1).parquet(sales_files)
    joined = semistream.join(stream.withWatermark("at", "1 minute"), relation, on="id", how="left", memory="1MB")
    counts = joined.groupBy("at").count().selectExpr("at", "`count` AS n")
    run_stream(counts, tmp_path)
    assert spark.read.parquet(str(tmp_path / "facts")).count() > 0


class TestBadInput:
    """Each is refused when `join` is called: on the driver, before any query starts."""

    def test_missing_key_column(self, sales: DataFrame, relation: str) -> None:
        with pytest.raises(
            KeyColumnError, match="'product' is not in the stream; its columns are: id, amount, at, note"
        ):
            semistream.join(sales, relation, on="product")

    def test_number_of_key_columns(self, sales: DataFrame, relation: str) -> None:
        with pytest.raises(KeyColumnError, match="name one column of the stream for each"):
            semistream.join(sales, relation, on=["id", "note"])

    def test_mismatched_key_types(self, sales: DataFrame, relation: str) -> None:
        with pytest.raises(KeyTypeError, match=r"'note' is string.*'id' is int64.*cast\(note as bigint\)"):
            semistream.join(sales, relation, on="note")

    def test_path_that_does_not_exist(self, sales: DataFrame, tmp_path: Path) -> None:
        with pytest.raises(NotARelationError, match=r"no relation at .*nowhere.*does not exist"):
            semistream.join(sales, tmp_path / "nowhere", on="id")

    def test_directory_that_is_not_a_relation(self, sales: DataFrame, sales_files: str) -> None:
        with pytest.raises(NotARelationError, match="not a relation; build one with"):
            semistream.join(sales, sales_files, on="id")

    def test_truncated_file(self, spark: SparkSession, sales: DataFrame, tmp_path: Path) -> None:
        semistream.spark.build(spark.range(5000), tmp_path / "r", key="id", shards=2)
        for file in (tmp_path / "r").glob("*.pages"):
            whole = file.read_bytes()
            file.write_bytes(whole[:-100])
            with pytest.raises(NotARelationError, match=r"shard-.*\.pages has .* bytes instead of"):
                semistream.join(sales, tmp_path / "r", on="id")
            file.write_bytes(whole)

    def test_corrupted_page_fails_the_query(self, spark: SparkSession, tmp_path: Path) -> None:
        semistream.spark.build(spark.range(5000), tmp_path / "r", key="id", shards=2)
        for file in (tmp_path / "r").glob("*.pages"):
            contents = bytearray(file.read_bytes())
            contents[5000] ^= 1
            file.write_bytes(contents)
        enriched = semistream.join(spark.range(5000), tmp_path / "r", on="id", memory="1MB")
        with pytest.raises(Exception, match=r"CorruptPageError: .*shard-.*\.pages"):
            enriched.count()

    def test_budget_too_small(self, sales: DataFrame, relation: str) -> None:
        with pytest.raises(
            BudgetTooSmallError, match=r"for each of its 3 shards.*adaptivejoin needs at least"
        ) as caught:
            semistream.join(sales, relation, on="id", memory="9KB")
        # The least it names is enough, and a byte a shard less is not.
        enriched = semistream.join(sales, relation, on="id", memory=caught.value.minimum)
        assert enriched.count() > 1000
        with pytest.raises(BudgetTooSmallError):
            semistream.join(sales, relation, on="id", memory=caught.value.minimum - 3)

    def test_unreadable_budget(self, sales: DataFrame, relation: str) -> None:
        with pytest.raises(ValueError, match="unknown unit 'pages' in '12pages'"):
            semistream.join(sales, relation, on="id", memory="12pages")

    def test_unknown_algorithm(self, sales: DataFrame, relation: str) -> None:
        with pytest.raises(UnknownAlgorithmError, match=r"'hybrid-join'; known algorithms: .*inlj.*mean 'hybridjoin'"):
            semistream.join(sales, relation, on="id", algorithm="hybrid-join")

    def test_unknown_how(self, sales: DataFrame, relation: str) -> None:
        with pytest.raises(UnsupportedJoinError, match="'outer'"):
            semistream.join(sales, relation, on="id", how="outer")  # type: ignore[arg-type]

    def test_option_that_the_algorithm_lacks(self, sales: DataFrame, relation: str) -> None:
        with pytest.raises(TypeError, match="speed"):
            semistream.join(sales, relation, on="id", speed=11)

    def test_part_of_a_relation(self, sales: DataFrame, relation: str) -> None:
        with pytest.raises(UnsupportedJoinError, match="opened with 1 of its 3 shards"):
            semistream.join(sales, semistream.Relation.open(relation, shards=[1]), on="id")

    def test_changes_that_are_not_in_the_files(self, spark: SparkSession, tmp_path: Path) -> None:
        with semistream.Relation.build(pa.table({"id": [1, 2], "v": [1, 2]}), tmp_path / "r", key="id") as changed:
            changed.apply(deletes=pa.array([1]))
            with pytest.raises(UnsupportedJoinError, match="changes in memory"):
                semistream.join(spark.range(3), changed, on="id")

    def test_two_columns_of_one_name(self, sales: DataFrame, relation: str) -> None:
        with pytest.raises(KeyColumnError, match="more than one column named 'note'"):
            semistream.join(sales.selectExpr("id", "note", "note"), relation, on="id")

    def test_column_that_cannot_become_arrow(self, sales: DataFrame, relation: str) -> None:
        with pytest.raises(UnsupportedTypeError, match=r"column 'age' is interval year to month.*drop it"):
            semistream.join(sales.selectExpr("id", "make_ym_interval(1) AS age"), relation, on="id")
