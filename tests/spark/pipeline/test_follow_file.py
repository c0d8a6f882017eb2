"""``[[follow]]`` in a pipeline file."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

pytest.importorskip("pyspark")

import semistream
from pipeline_runs import run_reported
from semistream.cli.run_following import following
from semistream.errors import FollowError
from semistream.relation.followed.follower import Lag
from semistream.relation.storage import manifest as manifests
from semistream.spark.monitoring.listening import BatchReport
from semistream.spark.monitoring.prometheus import PrometheusPage
from semistream.spark.pipeline import PipelineError, load
from semistream.spark.pipeline.document import Document
from semistream.spark.pipeline.follow_reading import missing_relation
from semistream.spark.pipeline.reading import read_plan

FILE = """
checkpoint = "check"
trigger = "{trigger}"
[source]
format = "parquet"
path = "sales"
schema = "id bigint, amount double"
[[follow]]
table = "table"
relation = "products"
{more}
[[join]]
relation = "products"
on = "id"
[sink]
format = "delta"
path = "facts"
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_deltalake(tmp_path / "table", pa.table({"id": [1, 2], "name": ["a", "b"]}))
    (tmp_path / "sales").mkdir()
    pq.write_table(pa.table({"id": [1, 2, 3], "amount": [1.0, 2.0, 3.0]}), tmp_path / "sales" / "1.parquet")
    return tmp_path


def written(
    place: Path, more: str = 'key = "id"\nevery = "1 minute 30 seconds"', trigger: str = "available now"
) -> Path:
    (place / "p.toml").write_text(FILE.format(more=more, trigger=trigger))
    return place / "p.toml"


def read(place: Path, more: str) -> tuple[Any, list[str]]:
    path = written(place, more)
    document = Document(path, path.read_text(), {})
    plan = read_plan(document)
    return plan, [f"{one.line}: {one.message}" for one in document.problems if not missing_relation(one, plan.follows)]


def test_reading_writes_nothing(place):
    plan, problems = read(place, 'key = "id"\nevery = "1 minute 30 seconds"\nshards = 2\nmemory = "64MB"')
    assert problems == []
    assert plan.follows[0].every == 90.0
    assert plan.follows[0].relation == place / "products"
    assert not (place / "products").exists()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ('key = "ident"', "8: key column 'ident' is not in the relation"),
        ('every = "soon"\nkey = "id"', "11: every: 'soon' is not an interval"),
        ('keys = "id"', "[follow] has no 'keys'"),
        ("", "8: .*declares no key"),
        ('key = "id"\nfill = 5', "8: fill must be from 0.1 to 1.0, not 5.0"),
        ('key = "id"\nfill = "most"', "12: fill: 'most' is not a number"),
        ('key = "id"\nshards = 70_000', "8: shards must be at most 65,536"),
        ('key = "id"\npage_size = "1000"', "8: page_size must be a multiple of 512"),
        ('key = "id"\ncatalog = "none"', "8: cannot open the Iceberg catalog 'none'"),
    ],
)
def test_mistakes_have_their_line(place, more, told):
    _, problems = read(place, more)
    assert any(re.search(told.replace("[", r"\["), one) for one in problems), problems


def test_an_interval_of_any_length(place):
    plan, problems = read(place, f'key = "id"\nevery = "{"9" * 400} days"')
    assert problems == []
    assert plan.follows[0].every == float("inf")


def test_a_path_that_the_system_refuses(place):
    path = written(place, 'key = "id"')
    path.write_text(path.read_text().replace('"products"', f'"{"x" * 300}"'))
    document = Document(path, path.read_text(), {})
    read_plan(document)
    told = [one for one in document.problems if "cannot be opened: File name too long; give another" in one.message]
    assert sorted(one.line for one in told) == [8, 13]


def test_two_tables_into_one_relation(place):
    _, problems = read(place, 'key = "id"\n[[follow]]\ntable = "table"\nrelation = "products"\nkey = "id"')
    assert "12: two tables are followed into" in problems[0]


def test_the_page_has_the_lag():
    page = PrometheusPage(0)
    try:
        page.follow("/data/products", Lag(3, 12.5))
        assert 'semistream_follow_lag_commits{relation="/data/products"} 3.0' in page.text()
        assert 'semistream_follow_lag_seconds{relation="/data/products"} 12.5' in page.text()
    finally:
        page.close()


@pytest.mark.spark
def test_the_relation_is_built_and_brought_up_to_date_at_every_start(spark, place):
    path = written(place)
    with pytest.raises(PipelineError, match=r"there is no relation at .*products"):
        load(path, follow=False)
    assert not (place / "products").exists(), "a check writes nothing"
    run_reported(load(path), [])
    write_deltalake(place / "table", pa.table({"id": [3], "name": ["c"]}), mode="append")
    pq.write_table(pa.table({"id": [3], "amount": [4.0]}), place / "sales" / "2.parquet")
    run_reported(load(path), [])
    facts = pa.table(DeltaTable(place / "facts").scan()).to_pylist()
    assert sorted((one["id"], one["amount"], one["name"]) for one in facts) == [
        (1, 1.0, "a"), (2, 2.0, "b"), (3, 3.0, None), (3, 4.0, "c"),
    ]  # fmt: skip


class _Query:
    """A query that can only be stopped."""

    stopped = False

    def stop(self) -> None:
        self.stopped = True


class _Lags(BatchReport):
    def __init__(self) -> None:
        self.lags: list[Lag] = []

    def add(self, batch: Any) -> None: ...

    def follow(self, relation: str, lag: Lag) -> None:
        self.lags.append(lag)


def test_tables_are_followed_while_the_query_runs(place, capsys):
    written(place, 'key = "id"\nevery = "10 milliseconds"', trigger="10 seconds")
    document = Document(place / "p.toml", (place / "p.toml").read_text(), {})
    plan = read_plan(document)
    query, lags = _Query(), _Lags()
    with following(plan, query, [lags]):  # type: ignore[arg-type]
        for version in (1, 2):
            deadline = time.monotonic() + 300
            while (manifests.latest(place / "products") or 0) < version:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            if version == 1:
                write_deltalake(place / "table", pa.table({"id": [3], "name": ["c"]}), mode="append")
    assert not query.stopped
    assert lags.lags


def test_a_table_that_cannot_be_followed_stops_the_query(place):
    semistream.follow(place / "table", place / "products", key="id")
    path = written(place, 'every = "10 milliseconds"', trigger="10 seconds")
    plan = read_plan(Document(path, path.read_text(), {}))
    query = _Query()
    semistream.upsert(place / "products", pa.table({"id": [1], "name": ["by hand"]}))

    def run() -> None:
        with following(plan, query, []):  # type: ignore[arg-type]
            deadline = time.monotonic() + 300
            while not query.stopped and time.monotonic() < deadline:
                time.sleep(0.01)

    with pytest.raises(FollowError, match="change the table instead"):
        run()
    assert query.stopped
