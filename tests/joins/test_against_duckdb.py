"""Every join against DuckDB's answer: any keys of any type, any order, batches and budgets of any size."""

from __future__ import annotations

import datetime
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

import semistream
from semistream.joins import find
from semistream.joins.interface.join import How
from semistream.relation.relation import Relation
from semistream_lab.conformance.expected import assert_same_rows, in_batches, paired, run

DAY = datetime.date(1970, 1, 1)
EPOCH = datetime.datetime(1970, 1, 1)
UTC_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def hours(start: datetime.datetime) -> list[datetime.datetime]:
    return [start + datetime.timedelta(hours=hour) for hour in (-(10**6), -3, -2, -1, 0, 1, 2, 3, 500, 10**6)]


@dataclass(frozen=True)
class Keys:
    """Values of a key, and the types it has in R and in the stream."""

    values: list[tuple[Any, ...]]
    types: tuple[pa.DataType, ...]
    stream_types: tuple[pa.DataType, ...] = ()

    def columns(self, rows: list[int | None], *, stream: bool) -> dict[str, pa.Array]:
        types = (self.stream_types or self.types) if stream else self.types
        return {
            f"k{number}": pa.array([None if row is None else self.values[row][number] for row in rows], kind)
            for number, kind in enumerate(types)
        }


def one(values: list[Any], kind: pa.DataType, stream: pa.DataType | None = None) -> Keys:
    return Keys([(value,) for value in values], (kind,), (stream,) if stream is not None else ())


def integers(kind: pa.DataType, stream: pa.DataType | None = None) -> Keys:
    limits = np.iinfo(kind.to_pandas_dtype())
    inside = [limits.min, limits.min + 1, 0, 1, 2, 3, 5, 8, limits.max - 1, limits.max]
    if stream is not None:
        theirs = np.iinfo(stream.to_pandas_dtype())
        inside = [value for value in inside if theirs.min <= value <= theirs.max]
    return one([int(value) for value in dict.fromkeys(inside)], kind, stream)


WORDS = ["", "a", "A", "a ", "ab", "é", "日本", "x" * 100, "x" * 101, "\0", "zz"]
NUMBERS = [Decimal(text) for text in ("0", "0.01", "-0.01", "1", "10", "99999.99", "-99999.99", "7.50", "7.51", "8")]
LONG_NUMBERS = [number * 10**25 for number in NUMBERS] + [Decimal(7), Decimal(-7)]
KEYS: dict[str, Keys] = {
    **{str(kind): integers(kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{str(kind): integers(kind) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    "int64, stream int8": integers(pa.int64(), pa.int8()),
    "uint64, stream int32": integers(pa.uint64(), pa.int32()),
    "bool": one([True, False], pa.bool_()),
    "string": one(WORDS, pa.string()),
    "large string, stream a dictionary": one(WORDS, pa.large_string(), pa.dictionary(pa.int16(), pa.string())),
    "string view": one(WORDS, pa.string_view(), pa.string()),
    "binary": one([word.encode() for word in WORDS], pa.binary()),
    "fixed binary": one([bytes([i, 255 - i, 7]) for i in range(12)], pa.binary(3), pa.binary()),
    "date": one([DAY + datetime.timedelta(days=day) for day in (-7000, -1, 0, 1, 2, 31, 365, 20_000)], pa.date32()),
    "date64": one([DAY + datetime.timedelta(days=day) for day in (-7000, -1, 0, 1, 2)], pa.date64(), pa.date32()),
    "timestamp": one(hours(EPOCH), pa.timestamp("us")),
    "timestamp ms, stream s": one(hours(EPOCH), pa.timestamp("ms"), pa.timestamp("s")),
    "timestamp with a zone": one(hours(UTC_EPOCH), pa.timestamp("us", "UTC"), pa.timestamp("us", "Asia/Tokyo")),
    "time": one([datetime.time(hour, minute) for hour in (0, 5, 23) for minute in (0, 1, 59)], pa.time64("us")),
    "duration": one([datetime.timedelta(seconds=s) for s in (-5, 0, 1, 2, 60, 86_400, 10**8)], pa.duration("us")),
    "decimal of 7 digits": one(NUMBERS, pa.decimal128(7, 2)),
    "decimal of 18 digits, stream of 9": one(NUMBERS, pa.decimal128(18, 2), pa.decimal128(9, 2)),
    "decimal of 38 digits": one(LONG_NUMBERS, pa.decimal128(38, 2)),
    "two columns": Keys([(i % 3, WORDS[i % 4]) for i in range(12)], (pa.int32(), pa.string())),
    "three columns": Keys(
        [(DAY + datetime.timedelta(days=i % 2), NUMBERS[i % 5], i % 3 - 1) for i in range(12)],
        (pa.date32(), pa.decimal128(30, 2), pa.int64()),
        (pa.date32(), pa.decimal128(20, 2), pa.int16()),
    ),
}


def duckdb_pairs(stream: pa.Table, master: pa.Table, keys: list[str], how: How) -> list[tuple[int, int | None]]:
    """Return the row numbers that DuckDB joins; it sees the keys only, so that values cannot change on the way."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("s", stream.select(["s", *keys]))
        connection.register("r", master.select(["r", *keys]))
        condition = " AND ".join(f"s.{key} = r.{key}" for key in keys)
        return connection.sql(f"SELECT s.s, r.r FROM s {how} JOIN r ON {condition}").fetchall()


@contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="semistream-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def assert_joins(
    algorithms: list[str], keys: Keys, ours: list[int | None], theirs: list[int | None], how: How,
    *, batch_rows: int, factor: float, **build: Any,
) -> None:  # fmt: skip
    names = [f"k{number}" for number in range(len(keys.types))]
    rng = np.random.default_rng(len(ours) * 1000 + len(theirs))
    texts = ["t" * int(length) for length in rng.integers(0, 30, len(ours))]
    master = pa.table(
        {**keys.columns(ours, stream=False), "r": np.arange(len(ours)), "text": pa.array(texts, "string")}
    )
    stream = pa.table({"s": np.arange(len(theirs)), **keys.columns(theirs, stream=True), "text": [1.5] * len(theirs)})
    wanted = paired(stream, master, names, duckdb_pairs(stream, master, names, how), "_right")
    with folder() as path:
        Relation.build(master, path / "r", key=names, **build)
        for algorithm in algorithms:
            with Relation.open(path / "r") as relation:
                least = find(algorithm).minimum_memory(relation, stream.schema, on=names)
                join = semistream.create(
                    algorithm, relation, on=names, how=how, memory=int(least * factor), schema=stream.schema
                )
                outcome = run(join, in_batches(stream, batch_rows))
                assert_same_rows(outcome.table, wanted, f"{algorithm} ({how})")
                assert join.pending == 0
                assert not join.bounded or join.budget.peak <= join.budget.total
                join.check()


PARTS = 4
"""Of the joins: each kind of key is joined by one part of them in make test, and by all in test-all."""
KINDS_AND_PARTS = [
    pytest.param(kind, part, marks=[] if part == number % PARTS else [pytest.mark.long])
    for number, kind in enumerate(KEYS)
    for part in range(PARTS)
]


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "part"), KINDS_AND_PARTS)
def test_every_kind_of_key_in_every_join(kind: str, part: int) -> None:
    """R holds every other value, repeatedly; the stream all of them, and NULLs."""
    keys, rng = KEYS[kind], np.random.default_rng(len(kind))
    count = len(keys.values)
    ours = rng.permutation(np.repeat(np.arange(0, count, 2), rng.integers(1, 30, len(range(0, count, 2))))).tolist()
    theirs: list[int | None] = rng.integers(0, count, 200).tolist()
    theirs[::17] = [None] * len(theirs[::17])
    for how, clustered in (("left", True), ("inner", False)):
        assert_joins(
            semistream.algorithms()[part::PARTS], keys, [*ours, None], theirs, how,  # type: ignore[arg-type]
            batch_rows=50, factor=1.5, page_size=512, clustered=clustered, shards=2,
        )  # fmt: skip


rows = st.one_of(st.none(), st.integers(0, 11))


@pytest.mark.sampled
@pytest.mark.parametrize("algorithm", semistream.algorithms())
@settings(max_examples=30)
@given(
    kind=st.sampled_from(list(KEYS)),
    ours=st.lists(rows, max_size=80),
    unique=st.booleans(),
    stretch=st.sampled_from([1, 1, 1, 40]),
    theirs=st.lists(rows, max_size=120),
    how=st.sampled_from(["inner", "left"]),
    batch_rows=st.sampled_from([1, 2, 7, 49, 50, 51, 1000]),
    factor=st.sampled_from([1.0, 1.02, 1.3, 3.0, 50.0]),
    clustered=st.booleans(),
    shards=st.integers(1, 3),
    page_size=st.sampled_from([512, 1024, 8192]),
    fill=st.sampled_from([0.3, 1.0]),
)
@pytest.mark.slow
def test_any_stream_and_any_relation(
    algorithm: str, kind: str, ours: list[int | None], unique: bool, stretch: int, theirs: list[int | None], how: Any,
    batch_rows: int, factor: float, clustered: bool, shards: int, page_size: int, fill: float,
) -> None:  # fmt: skip
    keys = KEYS[kind]
    count = len(keys.values)
    ours = [None if row is None else row % count for row in ours]
    if unique:
        ours = list(dict.fromkeys(ours))
    elif ours:
        ours += [ours[0]] * stretch  # one key over several pages
    theirs = [None if row is None else row % count for row in theirs]
    note(f"R: {[None if row is None else keys.values[row] for row in ours]}")
    note(f"stream: {[None if row is None else keys.values[row] for row in theirs]}")
    assert_joins(
        [algorithm], keys, ours, theirs, how, batch_rows=batch_rows, factor=factor,
        clustered=clustered, shards=shards, page_size=page_size, fill=fill,
    )  # fmt: skip


@pytest.mark.parametrize("algorithm", semistream.algorithms())
def test_values_that_the_key_of_r_cannot_hold_are_absent(algorithm: str) -> None:
    """261 is 5 in the lower eight bits, and must not match it."""
    master = pa.table({"k0": pa.array([-128, 5, 127, 0], pa.int8()), "r": np.arange(4)})
    stream = pa.table({"s": np.arange(9), "k0": [5, 261, -251, 127, 383, -128, 128, None, 2**40 + 5]})
    with folder() as path:
        relation = Relation.build(master, path / "r", key="k0")
        outcome = run(semistream.create(algorithm, relation, on="k0", how="left"), in_batches(stream))
    assert_same_rows(outcome.table, paired(stream, master, ["k0"], duckdb_pairs(stream, master, ["k0"], "left"), ""))
