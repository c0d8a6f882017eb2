"""Columns of every Arrow type pass through every join, on both sides, NULLs included."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.relation.relation import Relation
from semistream_lab.conformance.expected import join_pairs, laboratory

ROWS = 90


def values(make: Callable[[int], Any], kind: pa.DataType | None = None, null_every: int = 7) -> pa.Array:
    return pa.array([None if row % null_every == 3 else make(row) for row in range(ROWS)], kind)


def moment(row: int) -> datetime.datetime:
    return datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(hours=row)


def every_type() -> dict[str, pa.Array]:
    labels = values(lambda i: f"label {i % 5}")
    alternating = pa.array([i % 2 for i in range(ROWS)], pa.int8())
    return {
        "boolean": values(lambda i: i % 2 == 0),
        "tiny": values(lambda i: i - 20, pa.int8()),
        "unsigned": values(lambda i: 2**64 - 1 - i, pa.uint64()),
        "half": values(lambda i: np.float16(i / 2), pa.float16()),
        "double": values(lambda i: i / 7),
        "decimal32": values(lambda i: Decimal(i), pa.decimal32(7, 2)),
        "decimal128": values(lambda i: Decimal(i) * 10**20, pa.decimal128(38, 2)),
        "decimal256": values(lambda i: Decimal(-i) * 10**40, pa.decimal256(60, 2)),
        "date": values(lambda i: datetime.date(1970, 1, 1) + datetime.timedelta(days=i * 400), pa.date32()),
        "time": values(lambda i: i * 10**9, pa.time64("ns")),
        "moment": values(moment, pa.timestamp("us", "Europe/Berlin")),
        "wall clock": values(lambda i: i * 10**12, pa.timestamp("ms")),
        "duration": values(lambda i: i, pa.duration("ms")),
        "interval": values(lambda i: pa.MonthDayNano([i, 2, 3]), pa.month_day_nano_interval()),
        "text": values(lambda i: "ä" * (i % 20)),
        "large text": values(lambda i: "x" * (i % 20), pa.large_string()),
        "text view": values(lambda i: "y" * (i % 30), pa.string_view()),
        "bytes": values(lambda i: b"\0" * (i % 9), pa.binary()),
        "bytes view": values(lambda i: b"z" * (i % 30), pa.binary_view()),
        "fixed bytes": values(lambda i: bytes([i] * 5), pa.binary(5)),
        "dictionary": labels.dictionary_encode(),
        "ordered": pa.DictionaryArray.from_arrays(
            values(lambda i: i % 3, pa.int8()), ["low", "middle", "high"], ordered=True
        ),
        "list": values(lambda i: [None, *range(i % 4)], pa.list_(pa.int32())),
        "large list": values(lambda i: [str(i)] * (i % 3), pa.large_list(pa.string())),
        "list view": values(lambda i: list(range(i % 4)), pa.list_view(pa.int32())),
        "three": values(lambda i: [i, None, 3], pa.list_(pa.int16(), 3)),
        "struct": values(
            lambda i: {"a": i, "b": None if i % 2 else ["x"] * (i % 4)},
            pa.struct({"a": pa.int8(), "b": pa.list_(pa.string_view())}),
        ),
        "map": values(lambda i: [(str(j), j) for j in range(i % 3)], pa.map_(pa.string(), pa.int32())),
        "list of labels": pa.ListArray.from_arrays(
            pa.array(range(ROWS + 1), pa.int32()), labels.fill_null("none").dictionary_encode()
        ),
        "nothing": pa.nulls(ROWS),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([20, 45, ROWS], pa.int32()), pa.array([1, None, 3])),
        "sparse union": pa.UnionArray.from_sparse(alternating, [pa.array(range(ROWS)), labels]),
        "dense union": pa.UnionArray.from_dense(
            alternating,
            pa.array([i // 2 for i in range(ROWS)], pa.int32()),
            [pa.array(range(ROWS // 2)), pa.array([str(i) for i in range(ROWS // 2)])],
        ),
        "uuid": values(lambda i: bytes([i] * 16), pa.uuid()),
        "json": values(lambda i: f'{{"i": {i}}}', pa.json_()),
    }


def keyed(of_key: Callable[[int], int | None], prefix: str) -> pa.Table:
    key = pa.array([of_key(row) for row in range(ROWS)], pa.int64())
    columns = {f"{prefix} {name}": column for name, column in every_type().items()}
    return pa.table({"id": key, prefix: np.arange(ROWS), **columns})


@cache
def case(clustered: bool) -> tuple[Path, pa.Table, pa.Table]:
    # keys 0 to 44 of R occur twice; the stream has them, others, and NULLs
    master = keyed(lambda row: row * 7 % 45, "r")
    stream = keyed(lambda row: None if row % 10 == 9 else row * 11 % 60, "s")
    path = laboratory() / f"payloads {clustered}"
    Relation.build(master, path, key="id", page_size=4096, clustered=clustered, shards=2)
    return path, master, stream


@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("algorithm", semistream.algorithms())
def test_every_type_passes_through(algorithm: str, clustered: bool) -> None:
    path, master, stream = case(clustered)
    join = semistream.create(algorithm, Relation.open(path), on="id", how="left", memory="400KB")
    found = list(join.process(stream.to_batches(max_chunksize=37)))
    for field in join.output_schema:
        side = stream if field.name in stream.schema.names else master
        assert field.type == side.schema.field(field.name).type
    given, known = stream.to_pylist(), master.to_pylist()
    pairs = Counter()
    for row in (row for batch in found for row in batch.to_pylist()):
        left, right = row["s"], row["r"]
        pairs[left, right] += 1
        wanted = given[left] | {name: None if right is None else known[right][name] for name in join.output_schema.names
                                if name not in stream.schema.names}  # fmt: skip
        assert repr(row) == repr({name: wanted[name] for name in join.output_schema.names})
    assert pairs == Counter(join_pairs(stream, master, ["id"], ["id"], "left"))


@pytest.mark.parametrize("algorithm", semistream.algorithms())
@pytest.mark.parametrize("kind", ["dictionary", "view"])
def test_what_rows_share_does_not_make_every_row_large(
    algorithm: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice of one row holds a dictionary of 600 KB, or the bytes of all views; its own row is short."""
    rows = 3000
    names = [f"{row:0200d}" for row in range(rows)]
    column = pa.array(names).dictionary_encode() if kind == "dictionary" else pa.array(names, pa.string_view())
    stream = pa.record_batch({"id": np.arange(rows) % 60, "name": column})
    path, master, _ = case(True)
    join = semistream.create(algorithm, Relation.open(path), on="id", how="inner", memory="1MB")
    aside = []
    monkeypatch.setattr(join, "_put_aside", lambda keys, batch: aside.append(batch.num_rows))
    found = sum(batch.num_rows for batch in join.process([stream]))
    assert not aside, f"{sum(aside)} of {rows} rows were served one by one"
    assert found == len(join_pairs(pa.Table.from_batches([stream]), master, ["id"], ["id"], "inner"))
