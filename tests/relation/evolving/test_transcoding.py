"""Rows in an earlier layout are shown with the same bytes as rows that were written in the new layout."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream.core.errors import CorruptPageError, UnsupportedJoinError
from semistream.relation.pages.page_layout import page_keys
from semistream.relation.pages.transcoded_device import TranscodedDevice
from semistream.relation.relation import Relation
from semistream.relation.rows.fitting import as_type
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.rows.widening import conversion, is_widening

ROWS = 200
INTEGERS = {1: "int8", 2: "int16", 4: "int32"}


def values(kind: pa.DataType, rng: np.random.Generator) -> pa.Array:
    """Return extreme and random values of a type, and NULLs."""
    nulls = rng.random(ROWS) < 0.2
    is_ = pa.types
    if is_.is_integer(kind):
        info = np.iinfo(kind.to_pandas_dtype())
        found = rng.integers(info.min, info.max, ROWS, endpoint=True, dtype=info.dtype)
        found[:3] = info.min, info.max, 0
        return pa.array(found, kind, mask=nulls)
    if is_.is_float32(kind):
        found = rng.normal(size=ROWS).astype(np.float32)
        found[:5] = np.inf, -np.inf, -0.0, np.float32(1e-42), np.finfo(np.float32).max
        return pa.array(found, kind, mask=nulls)
    if is_.is_date32(kind):
        found = rng.integers(-(2**31), 2**31 - 1, ROWS).astype(np.int32)
        found[:2] = -(2**31), 2**31 - 1
        return pa.array(found, pa.int32(), mask=nulls).cast(kind)
    if is_.is_decimal(kind):
        given = [
            None if null else Decimal(int(value)).scaleb(-2)
            for value, null in zip(rng.integers(-999, 999, ROWS), nulls, strict=True)
        ]
        return pa.array(given, kind)
    texts = [None if null else "ä" * int(rng.integers(0, 9)) for null in nulls]
    return as_type(pa.array([None if text is None else text.encode() for text in texts], pa.binary())
                   if is_.is_binary(kind) else pa.array(texts, pa.string()), kind)  # fmt: skip


WIDENED = [
    (pa.int8(), pa.int16()), (pa.int8(), pa.int64()), (pa.int16(), pa.int32()), (pa.int32(), pa.int64()),
    (pa.uint8(), pa.int16()), (pa.uint16(), pa.uint64()), (pa.uint32(), pa.int64()), (pa.int8(), pa.float64()),
    (pa.int32(), pa.float64()), (pa.float32(), pa.float64()), (pa.decimal128(7, 2), pa.decimal128(20, 2)),
    (pa.date32(), pa.date64()), (pa.date32(), pa.timestamp("s")), (pa.date32(), pa.timestamp("ms")),
    (pa.string(), pa.large_string()), (pa.string(), pa.string_view()), (pa.binary(), pa.large_binary()),
    (pa.dictionary(pa.int8(), pa.string()), pa.string()), (pa.uint32(), pa.float64()),
    (pa.dictionary(pa.int8(), pa.string()), pa.large_string()),
]  # fmt: skip


def widened(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_date32(column.type) and not pa.types.is_date64(kind):  # Arrow's cast refuses dates far away
        factor = 86_400 if kind.unit == "s" else 86_400_000
        days = column.cast(pa.int32()).cast(pa.int64())
        return pa.compute.multiply(days, factor).cast(kind)
    return as_type(column, kind)


def stored_rows(relation: Relation) -> dict[int, bytes]:
    """Return the bytes of each row as joins see them, by key."""
    found = {}
    for page in range(relation.page_count):
        frames = relation.frames(1)
        relation.read(np.array([page]), frames)
        keys, _, starts = page_keys(frames, relation.layout.stride)
        used = int(frames[0, 16:20].view(np.uint32)[0])
        ends = np.append(starts[1:], used)
        assert not frames[0, used:].any()
        for key, start, end in zip(keys.tolist(), starts.tolist(), ends.tolist(), strict=True):
            found[key] = frames[0, start:end].tobytes()
    return found


def encoded(table: pa.Table) -> dict[int, bytes]:
    batch = table.drop_columns(["id"]).combine_chunks().to_batches()[0]
    rows = RowCodec(batch.schema).encode(batch)
    return {
        key: rows.data[start : start + length].tobytes()
        for key, start, length in zip(table["id"].to_pylist(), rows.starts, rows.lengths, strict=True)
    }


def check(relation: Relation, expected: pa.Table) -> None:
    found = relation.to_table()
    assert found.schema.equals(expected.schema)
    if relation.shard_count == 1:  # Python has no dates after the year 9999, and Arrow does not sort views
        assert found.combine_chunks().equals(expected.combine_chunks())
    else:
        assert sorted(found.to_pylist(), key=lambda row: row["id"]) == expected.to_pylist()
    assert stored_rows(relation) == encoded(expected)


@pytest.mark.parametrize(("before", "after"), WIDENED, ids=lambda kind: str(kind).replace("/", "-"))
def test_every_widening_there_and_back(before: pa.DataType, after: pa.DataType, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    column = values(before, rng)
    texts = pa.array(["t" * int(size) for size in rng.integers(0, 20, ROWS)])
    table = pa.table({"id": range(ROWS), "text": texts, "it": column})
    with Relation.build(table, tmp_path / "r", "id", page_size=512) as relation:
        first = relation.manifest.row_layouts
        assert is_widening(before, after)
        assert not is_widening(after, before)
        relation.evolve(widen={"it": after})
        assert isinstance(relation.device, TranscodedDevice)
        wide = table.set_column(2, "it", widened(column, after))
        check(relation, wide)
        if conversion(after, before) is None:
            return
        relation.compact()
        assert not isinstance(relation.device, TranscodedDevice)
        check(relation, wide)
        with Relation.open(tmp_path / "r", shown_as=first) as shown:
            check(shown, table)


def test_widened_twice_is_widened() -> None:
    """Rows of the first type are shown in the last one, so there must be a direct way."""
    kinds = [kind for pair in WIDENED for kind in pair]
    kinds += [pa.dictionary(pa.int8(), kind) for kind in kinds if not pa.types.is_dictionary(kind)]
    ways = {(a, b) for a in kinds for b in kinds if is_widening(a, b)}
    assert len(ways) > 50
    assert {(a, d) for a, b in ways for c, d in ways if b == c} <= ways


def test_what_does_not_fit_the_earlier_type(tmp_path: Path) -> None:
    for number, (before, after, value) in enumerate(
        [
            (pa.int32(), pa.int64(), 2**31), (pa.int32(), pa.int64(), -(2**31) - 1), (pa.uint8(), pa.int16(), -1),
            (pa.uint32(), pa.uint64(), 2**63), (pa.float32(), pa.float64(), 0.1), (pa.int8(), pa.float64(), 0.5),
            (pa.int32(), pa.float64(), float("nan")), (pa.int16(), pa.float64(), 1e300),
            (pa.int16(), pa.float64(), -0.0), (pa.uint16(), pa.float64(), -1.0), (pa.uint32(), pa.float64(), 2.0**32),
            (pa.date32(), pa.timestamp("s"), datetime.datetime(2020, 1, 1, 1)),
        ]
    ):  # fmt: skip
        path = tmp_path / str(number)
        with Relation.build(pa.table({"id": [1], "it": pa.array([None], before)}), path, "id") as relation:
            first = relation.manifest.row_layouts
            relation.evolve(widen={"it": after})
            relation.upsert(pa.table({"id": [2], "it": pa.array([value], after)}))
            with (
                Relation.open(path, shown_as=first) as shown,
                pytest.raises(UnsupportedJoinError, match="'it' was wid"),
            ):
                shown.to_table()


def test_all_kinds_of_columns_move_and_grow(tmp_path: Path) -> None:
    """Nested and encoded columns keep their bytes, wherever they move; rows of fixed length become variable."""
    rng = np.random.default_rng(1)
    texts = [None if rng.random() < 0.2 else "x" * int(rng.integers(0, 9)) for _ in range(ROWS)]
    table = pa.table(
        {
            "id": range(ROWS),
            "flag": pa.array([None if at % 5 == 0 else at % 2 == 0 for at in range(ROWS)]),
            "list": pa.array([None if at % 7 == 0 else [texts[at]] * (at % 3) for at in range(ROWS)]),
            "pair": pa.array([None if at % 6 == 0 else {"a": at, "b": texts[at]} for at in range(ROWS)]),
            "word": pa.array(texts).dictionary_encode(),
            "null": pa.nulls(ROWS),
            "gone": texts,
            "wide": pa.array(range(ROWS), pa.int16()),
        }
    )
    with Relation.build(table, tmp_path / "r", "id", page_size=1024, shards=2, clustered=False) as relation:
        relation.evolve(
            add={"colour": pa.large_string(), "stock": pa.int32(), "sizes": pa.list_(pa.int8()), "on": pa.bool_()},
            drop=["gone", "flag"], rename={"list": "items"}, widen={"wide": pa.int64()},
            defaults={"colour": "blue", "on": True},
        )  # fmt: skip
        expected = pa.table(
            {
                "id": table["id"], "items": table["list"], "pair": table["pair"], "word": table["word"],
                "null": table["null"], "wide": table["wide"].cast(pa.int64()),
                "colour": pa.array(["blue"] * ROWS, pa.large_string()), "stock": pa.nulls(ROWS, pa.int32()),
                "sizes": pa.nulls(ROWS, pa.list_(pa.int8())), "on": [True] * ROWS,
            }
        )  # fmt: skip
        check(relation, expected)
    fixed = pa.table({"id": range(ROWS), "n": pa.array(range(ROWS), pa.int16())})
    with Relation.build(fixed, tmp_path / "fixed", "id", page_size=512) as relation:
        relation.evolve(add={"text": pa.string()})
        check(relation, fixed.append_column("text", pa.nulls(ROWS, pa.string())))
        relation.evolve(drop=["text", "n"])
        check(relation, fixed.select(["id"]))
    with Relation.build(fixed.select(["id"]), tmp_path / "keys", "id", page_size=512) as relation:
        relation.evolve(add={"text": pa.string()}, defaults={"text": "abc"})
        check(relation, fixed.select(["id"]).append_column("text", pa.array(["abc"] * ROWS)))


def test_a_damaged_page_leaves_nothing_in_the_frames(tmp_path: Path) -> None:
    with Relation.build(
        pa.table({"id": range(ROWS), "n": range(ROWS)}), tmp_path / "r", "id", page_size=512
    ) as relation:
        relation.evolve(add={"m": pa.int64()})
        with open(tmp_path / "r" / relation.stored.shards[0].pages_file, "r+b") as file:
            file.seek(512 + 100)
            file.write(b"!!!")
        frames = relation.frames(3)
        with pytest.raises(CorruptPageError):
            relation.read(np.array([0, 1, 2]), frames)
        assert not frames.any()
