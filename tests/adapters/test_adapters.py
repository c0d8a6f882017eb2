"""Look-ups from Polars, DuckDB, Dask and Quix Streams, with the packages themselves."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import semistream.adapters
from semistream import Relation
from semistream.adapters import duckdb_tables, polars_frames
from semistream.errors import ColumnClashError, KeyColumnError, KeyTypeError, UnknownColumnsError
from semistream.lookups import Lookups

ROWS = 3_000
LINES = 60


@pytest.fixture
def lookups(tmp_path: Path) -> Iterator[Lookups]:
    numbers = np.arange(ROWS)
    table = pa.table({
        "id": 2 * numbers, "name": [f"name {number}" for number in range(ROWS)],
        "stock": pa.array(numbers % 9, pa.int32(), mask=numbers % 5 == 0),
    })  # fmt: skip
    with Relation.build(table, tmp_path / "products", key="id") as relation, Lookups(relation, memory="500KB") as made:
        yield made


def sales(count: int = 8_000) -> pa.Table:
    """Every other product is unknown; some sales have none."""
    keys = np.random.default_rng(2).integers(0, 2 * ROWS, count)
    return pa.table({"sale": np.arange(count), "product": pa.array(keys, mask=keys % 11 == 0), "name": ["x"] * count})


def joined(table: pa.Table) -> list[tuple[Any, ...]]:
    found = []
    for sale, product, name in zip(*(table[one].to_pylist() for one in table.column_names), strict=True):
        known = product is not None and product % 2 == 0
        number = product // 2 if known else 0
        right = (f"name {number}", None if number % 5 == 0 else number % 9) if known else (None, None)
        found.append((sale, product, name, *right))
    return found


def test_adapters_are_short() -> None:
    files = Path(inspect.getfile(semistream.adapters)).parent.glob("*.py")
    lines = {path.name: len(path.read_text().splitlines()) for path in files}
    assert len(lines) > 5
    assert {name: count for name, count in lines.items() if count > LINES} == {}


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_polars(lookups: Lookups, engine: Any) -> None:
    table = sales()
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    lazy = polars_frames.enrich(frame.lazy(), lookups, on="product")
    assert lazy.collect_schema().names() == ["sale", "product", "name", "name_right", "stock"]
    assert sorted(lazy.collect(engine=engine).rows(), key=lambda row: row[0]) == joined(table)
    some = polars_frames.enrich(frame.lazy(), lookups, "product", ["stock"]).select(pl.col("stock").sum())
    assert some.collect(engine=engine).item() == sum(row[4] or 0 for row in joined(table))
    with pytest.raises(KeyColumnError, match="key column 'produkt' is not in the table"):
        polars_frames.enrich(frame.lazy(), lookups, on="produkt")
    with pytest.raises(KeyTypeError, match="table column 'name' is"):
        polars_frames.enrich(frame.lazy(), lookups, on="name")


def test_duckdb(lookups: Lookups) -> None:
    table = sales()
    with duckdb.connect() as connection:
        connection.register("sales", table)
        duckdb_tables.register(connection, "products", lookups)
        found = connection.sql(
            "SELECT sale, product, name, row.name, row.stock "
            "FROM (SELECT *, products(product) AS row FROM sales) ORDER BY sale"
        )
        assert found.fetchall() == joined(table)
        unknown = connection.execute("SELECT count(*) FROM sales WHERE products(product) IS NULL").fetchone()
        assert unknown == (sum(row[3] is None for row in joined(table)),)
        for _ in range(2):  # a scan begins again
            assert connection.execute("SELECT count(*), sum(id) FROM products WHERE id >= 10").fetchone() == (
                ROWS - 5, sum(range(10, 2 * ROWS, 2)),
            )  # fmt: skip
        lookups.relation.upsert(pa.table({"id": [2], "name": ["new"], "stock": pa.array([1], pa.int32())}))
        assert connection.execute("SELECT products(2).name").fetchone() == ("new",)
        assert connection.execute("SELECT name FROM products WHERE id = 2").fetchone() == ("new",)


def test_duckdb_with_some_columns_of_a_composite_key(tmp_path: Path) -> None:
    table = pa.table({"shop": ["a", "a", "b"], "day": [1, 2, 1], "open": [True, False, True], "note": ["x", "y", "z"]})
    with (
        Relation.build(table, tmp_path / "shops", key=["shop", "day"]) as relation,
        Lookups(relation, memory="500KB") as lookups,
        duckdb.connect() as connection,
    ):
        duckdb_tables.register(connection, "shops", lookups, ["open"])
        found = connection.execute("SELECT shops('a', 2), shops('b', 2), shops(NULL, 1)").fetchone()
        assert found == ({"open": False}, None, None)
        with duckdb.connect() as connection:
            duckdb_tables.register(connection, "shops", lookups, ["note", "open"])
            assert connection.sql("SELECT shops('a', 2)").fetchall() == [({"note": "y", "open": False},)]
            for wrong in (["nmae"], ["day"], "open", ["open", "open"]):
                with pytest.raises(UnknownColumnsError, match="must name columns of R, each once: open, note"):
                    duckdb_tables.register(connection, "wrong", lookups, wrong)


@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
def test_dask(lookups: Lookups, scheduler: str) -> None:
    dask = pytest.importorskip("dask")
    dd = pytest.importorskip("dask.dataframe")
    from semistream.adapters import dask_frames

    table = sales(3_000)
    frame = dd.from_pandas(table.to_pandas(types_mapper=pd.ArrowDtype), npartitions=5)
    enriched = dask_frames.enrich(frame, lookups.relation, "product", memory="500KB")
    assert list(enriched.columns) == ["sale", "product", "name", "name_right", "stock"]
    with dask.config.set(scheduler=scheduler, num_workers=2):
        found = enriched.compute()
    assert (found.dtypes == enriched.dtypes).all()
    rows = pa.Table.from_pandas(found, preserve_index=False)
    assert list(zip(*(one.to_pylist() for one in rows.columns), strict=True)) == joined(table)


def test_dask_with_names_that_clash(lookups: Lookups) -> None:
    dd = pytest.importorskip("dask.dataframe")
    from semistream.adapters import dask_frames

    frame = dd.from_pandas(pd.DataFrame({"product": [2], "name": ["x"], "name_right": ["y"]}), npartitions=1)
    with pytest.raises(ColumnClashError, match="two columns 'name_right'; give a suffix other than '_right'"):
        dask_frames.enrich(frame, lookups.relation, "product")
    enriched = dask_frames.enrich(frame, lookups.relation, "product", suffix="_of_r", memory="500KB")
    assert list(enriched.columns) == ["product", "name", "name_right", "name_of_r", "stock"]


@pytest.fixture
def quix() -> ModuleType:
    pytest.importorskip("quixstreams", reason="quixstreams needs an older pydantic than other packages here")
    from semistream.adapters import quix_streams

    return quix_streams


def test_quix_streams(lookups: Lookups, quix: ModuleType) -> None:
    """The look-up as Quix calls it: one record after the other, which it changes."""
    lookup = quix.RelationLookup(lookups)
    fields = {"title": quix.RelationField("name", default="?"), "left": quix.RelationField("stock")}
    for sale, product, name, right, stock in random.Random(1).sample(joined(sales()), 300):
        value = {"sale": sale, "product": product, "name": name}
        lookup.join(fields, product, value, b"", 0, None)
        assert value == {
            "sale": sale, "product": product, "name": name, "title": "?" if right is None else right, "left": stock,
        }  # fmt: skip


@pytest.mark.long
def test_a_quix_application(lookups: Lookups, quix: ModuleType, kafka: Any, tmp_path: Path) -> None:
    """A real application, from a topic to a list."""
    from quixstreams import Application

    kafka.send("quix-sales", [f'{{"sale": {number}, "product": {number}}}' for number in range(40)])
    app = Application(kafka.servers, consumer_group="quix", auto_offset_reset="earliest", state_dir=str(tmp_path))
    rows: list[dict[str, Any]] = []
    frame = app.dataframe(app.topic("quix-sales"))
    frame = frame.join_lookup(quix.RelationLookup(lookups), {"title": quix.RelationField("name")}, on="product")
    frame.update(rows.append)
    app.run(count=40, timeout=60)
    assert sorted((row["sale"], row["title"]) for row in rows) == [
        (number, None if number % 2 else f"name {number // 2}") for number in range(40)
    ]
