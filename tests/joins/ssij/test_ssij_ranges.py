"""SSIJ: tuples that ask for a range of keys."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semistream
from semistream.core.errors import (
    KeyColumnError,
    KeyTypeError,
    UnsupportedJoinError,
)
from semistream.joins.adaptive.range_sweep import bytes_per_interval
from semistream.joins.interface.join import Join
from semistream.joins.ssij.ssij import Ssij
from semistream.relation.relation import Relation
from semistream_lab.conformance.expected import assert_same_rows, run
from ssij_cases import BETWEEN, ssij


def answer(stream: pa.Table, master: pa.Table, how: str) -> pa.Table:
    kind = "LEFT JOIN" if how == "left" else "JOIN"
    return duckdb.sql(
        f"SELECT s.*, r.* FROM stream s {kind} master r ON r.id BETWEEN s.low AND s.high"
    ).to_arrow_table()


def check_ranges(join: Join, stream: pa.Table, master: pa.Table, batch: int = 50) -> None:
    outcome = run(join, stream.to_batches(batch), audit=True)
    wanted = answer(stream, master, join.how).cast(outcome.table.schema)
    assert_same_rows(outcome.table, wanted, f"{join.id}, {join.how}")
    assert outcome.stats.rows_in == outcome.stats.rows_done == stream.num_rows
    assert join.budget.peak <= join.budget.total or not join.bounded


bounds = st.none() | st.integers(-20, 120)


@pytest.mark.parametrize("algorithm", ["ssij", "adaptivejoin", "oracle"])
@settings(max_examples=12)
@given(
    keys=st.lists(st.integers(0, 100), max_size=400),
    ranges=st.lists(st.tuples(bounds, bounds), min_size=1, max_size=60),
    shards=st.integers(1, 3),
    how=st.sampled_from(["inner", "left"]),
    factor=st.sampled_from([1.0, 1.05, 1.5, 40.0]),
    batch=st.sampled_from([1, 7, 50]),
)
def test_range_joins_equal_duckdb(
    tmp_path_factory: pytest.TempPathFactory,
    keys: list[int],
    ranges: list[tuple[int | None, int | None]],
    shards: int,
    how: str,
    factor: float,
    batch: int,
    algorithm: str,
) -> None:
    master = pa.table({"id": pa.array(keys, pa.int64()), "value": pa.array([f"v{i}" for i in range(len(keys))])})
    stream = pa.table(
        {
            "low": pa.array([low for low, _ in ranges], pa.int64()),
            "n": np.arange(len(ranges)),
            "high": pa.array([high for _, high in ranges], pa.int64()),
        }
    )
    path = tmp_path_factory.mktemp("r") / "r"
    with Relation.build(master, path, "id", page_size=512, shards=shards) as relation:
        kind = semistream.joins.find("ssij" if algorithm == "oracle" else algorithm)
        least = kind.minimum_memory(relation, stream.schema, **BETWEEN)
        join = semistream.create(
            algorithm, relation, how=how, memory=int(least * factor), schema=stream.schema, **BETWEEN
        )
        check_ranges(join, stream, master, batch)


def test_ranges_share_pages_and_come_with_r_in_any_state(folder: Path) -> None:
    master = pa.table({"id": np.arange(0, 20_000, 2), "value": np.arange(10_000)})
    low = np.random.default_rng(1).integers(-50, 20_000, 3000)
    stream = pa.table({"low": low, "high": low + 40, "n": np.arange(3000)})
    with Relation.build(master, folder / "r", "id", page_size=1024) as relation:
        join = semistream.create(
            "adaptivejoin", relation, memory=relation.nbytes * 60 // 100, schema=stream.schema, **BETWEEN
        )
        check_ranges(join, stream, master, 3000)
        at_once = join.view().parts["intervals"] // bytes_per_interval(relation)
        sweeps = join.stats.steps + stream.num_rows // at_once
        assert join.stats.pages_read <= sweeps * relation.page_count < stream.num_rows
        relation.apply(pa.table({"id": np.arange(1, 400, 2), "value": np.arange(200)}), deletes=pa.array([0, 2, 4]))
        found = run(join, stream.slice(0, 500).to_batches()).table
        wanted = answer(stream.slice(0, 500), relation.to_table(), "left").cast(found.schema)
        assert_same_rows(found, wanted, "after an update")


def test_a_range_over_all_of_r_within_the_least_memory(folder: Path) -> None:
    master = pa.table({"id": np.arange(5000), "value": np.arange(5000) * 3})
    stream = pa.table({"low": [0, 4999, -5, 100], "high": [4999, 9999, -1, 90], "n": [1, 2, 3, 4]})
    with Relation.build(master, folder / "r", "id", page_size=512) as relation:
        least = Ssij.minimum_memory(relation, stream.schema, **BETWEEN)
        join = ssij(relation, how="left", memory=least, schema=stream.schema, **BETWEEN)
        check_ranges(join, stream, master, 1)
        assert join.join_phases > 3, "all pages at once cannot have fitted"


@pytest.mark.parametrize(
    ("kind", "values", "lows", "highs"),
    [
        (pa.int8(), [-128, -5, 0, 127], [-1000, 100, 200, -128], [1000, 2**40, 300, -127]),
        (pa.uint64(), [0, 5, 2**64 - 1], [-3, 2**63 - 1, -9, 6], [4, 2**63 - 1, -8, 9]),
        (pa.int64(), [-(2**63), 0, 2**63 - 1], [-(2**63), 1, 5, 0], [0, 2**63 - 1, 4, 0]),
    ],
)
def test_integer_bounds_of_any_width(
    folder: Path, kind: pa.DataType, values: list[int], lows: list[int], highs: list[int]
) -> None:
    master = pa.table({"id": pa.array(values, kind), "value": np.arange(len(values))})
    stream = pa.table({"low": pa.array(lows, pa.int64()), "high": pa.array(highs, pa.int64()), "n": np.arange(4)})
    with Relation.build(master, folder / "r", "id") as relation:
        for how in ("inner", "left"):
            join = ssij(relation, how=how, **BETWEEN)
            found = run(join, stream.to_batches()).table
            pairs = [
                (n, value)
                for n, low, high in zip(range(4), lows, highs, strict=True)
                for value in ([v for v in values if low <= v <= high] or ([None] if how == "left" else []))
            ]
            assert sorted(zip(found["n"].to_pylist(), found["id"].to_pylist(), strict=True), key=repr) == sorted(
                pairs, key=repr
            )


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.date32(), [datetime.date(2020, 1, day) for day in range(1, 29)]),
        (pa.timestamp("us", "UTC"), [datetime.datetime(2020, 1, 1, hour, tzinfo=datetime.UTC) for hour in range(24)]),
        (pa.decimal128(10, 2), [Decimal(cents) / 4 for cents in range(-40, 40)]),
    ],
)
def test_dates_moments_and_decimals(folder: Path, kind: pa.DataType, values: list[Any]) -> None:
    master = pa.table({"id": pa.array(values, kind), "value": np.arange(len(values))})
    stream = pa.table(
        {"low": pa.array([values[3], values[9], None], kind), "high": pa.array([values[7], values[8], values[9]], kind)}
    )
    with Relation.build(master, folder / "r", "id", page_size=512) as relation:
        join = ssij(relation, how="left", **BETWEEN)
        found = pa.Table.from_batches(join.process(stream.to_batches()))
        assert found.schema.field("id").type == kind
        assert sorted(found["id"].to_pylist(), key=repr) == sorted([*values[3:8], None, None], key=repr)


def test_a_name_on_both_sides_and_rows_larger_than_a_page(folder: Path) -> None:
    master = pa.table({"id": np.arange(300), "note": [f"r{i}" for i in range(300)]})
    notes = [("long " * 2000) if i % 5 == 0 else "short" for i in range(40)]
    stream = pa.table({"low": np.arange(40) * 10, "high": np.arange(40) * 10 + 25, "note": notes})
    with Relation.build(master, folder / "r", "id", page_size=512) as relation:
        join = ssij(relation, how="left", memory="200KB", **BETWEEN)
        outcome = run(join, stream.to_batches(11), audit=True)
        assert outcome.table.schema.names == ["low", "high", "note", "id", "note_right"]
        wanted = answer(stream, master, "left").rename_columns(outcome.table.schema.names)
        assert_same_rows(outcome.table, wanted.cast(outcome.table.schema))


def test_ranges_that_cannot_be(folder: Path) -> None:
    numbers = Relation.build(pa.table({"id": [1], "v": [1]}), folder / "n", "id")
    words = Relation.build(pa.table({"id": ["a"], "v": [1]}), folder / "w", "id")
    pairs = Relation.build(pa.table({"a": [1], "b": [2]}), folder / "p", ["a", "b"])
    moments = Relation.build(pa.table({"id": pa.array([0], pa.timestamp("s")), "v": [1]}), folder / "t", "id")
    heap = Relation.build(pa.table({"id": [1], "v": [1]}), folder / "h", "id", clustered=False)
    schema = pa.schema({"low": pa.int64(), "high": pa.int64()})
    with pytest.raises(UnsupportedJoinError, match=r"hashed.*date"):
        ssij(words, **BETWEEN)
    with pytest.raises(UnsupportedJoinError, match="hashed"):
        ssij(pairs, **BETWEEN)
    with pytest.raises(UnsupportedJoinError, match="clustered=True"):
        ssij(heap, **BETWEEN)
    with pytest.raises(KeyColumnError, match=r"on=\('low', 'high'\)"):
        ssij(numbers, on="low", condition="between")
    with pytest.raises(KeyColumnError, match="high"):
        ssij(numbers, schema=schema.remove(1), **BETWEEN)
    with pytest.raises(KeyTypeError, match="high"):
        ssij(numbers, schema=schema.set(1, pa.field("high", pa.string())), **BETWEEN)
    zoned = pa.schema({"low": pa.timestamp("ms"), "high": pa.timestamp("s", "UTC")})
    with pytest.raises(KeyTypeError, match=r"high.*timestamp\[s\]"):
        ssij(moments, schema=zoned, **BETWEEN)
    with pytest.raises(UnsupportedJoinError, match=r"hybridjoin.*ssij"):
        semistream.create("hybridjoin", numbers, **BETWEEN)
    with pytest.raises(UnsupportedJoinError, match="nearest"):
        ssij(numbers, on="low", condition="nearest")
