"""Joins on ranges (``condition="between"``): every type of bound gives what SQL's ``BETWEEN`` gives."""

from __future__ import annotations

import math
import random
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.core.errors import KeyColumnError, KeyTypeError, UnsupportedJoinError
from semistream.joins import algorithms, find
from semistream.relation.keys.key_kinds import tick_kind, tick_nanoseconds
from semistream.relation.relation import Relation

RANGED = [name for name in algorithms() if "between" in find(name).conditions]


def _exact(kind: pa.DataType) -> bool:
    return not pa.types.is_decimal(kind) or kind.precision <= 18


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
DECIMALS = [
    pa.decimal128(18, 4), pa.decimal128(5, 0), pa.decimal128(9, 9), pa.decimal128(38, 10), pa.decimal256(76, 40),
    pa.decimal256(76, 0), pa.decimal32(9, 2),
]  # fmt: skip
CLOCKS = [pa.date32(), pa.date64(), *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns"))]
MOMENTS = [pa.timestamp(unit, zone) for unit, zone in (("s", "UTC"), ("us", "Asia/Tokyo"), ("ns", "UTC"))]
TIMES = [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
SPANS = [pa.duration("s"), pa.duration("ms"), pa.duration("ns")]
FAMILIES = [
    (INTEGERS + DECIMALS[:4], INTEGERS + DECIMALS),
    (INTEGERS, FLOATS),
    *((kinds, kinds) for kinds in (CLOCKS, MOMENTS, TIMES, SPANS)),
]
PAIRS = [(ours, theirs) for keys, bounds in FAMILIES for ours in keys for theirs in bounds if _exact(ours)]


def _array(kind: pa.DataType, numbers: list[int | float | None]) -> pa.Array:
    """Make an array of raw values: unscaled decimals, ticks, and floats as they are."""
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        return pa.array([None if n is None else np.float16(n) if kind == pa.float16() else n for n in numbers], kind)
    width = kind.bit_width // 8
    words = b"".join((0 if n is None else int(n)).to_bytes(width, "little", signed=True) for n in numbers)
    mask = pa.array([n is not None for n in numbers]).buffers()[1]
    return pa.Array.from_buffers(kind, len(numbers), [mask, pa.py_buffer(words)])


def _value(kind: pa.DataType, raw: int | float | None) -> Fraction | float | None:
    """Return what a raw value stands for, exactly; NaN is above all numbers."""
    if raw is None or (isinstance(raw, float) and not math.isfinite(raw)):
        return math.inf if isinstance(raw, float) and not raw < 0 else raw
    if pa.types.is_decimal(kind):
        return Fraction(raw) / Fraction(10) ** kind.scale
    return Fraction(raw) * (tick_nanoseconds(kind) if tick_kind(kind) else 1)


def _limits(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_decimal(kind):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    if tick_kind(kind) == "time":
        return 0, 86_400 * 10**9 // tick_nanoseconds(kind) - 1
    limits = np.iinfo(kind.to_pandas_dtype() if pa.types.is_integer(kind) else f"i{kind.bit_width // 8}")
    return int(limits.min), int(limits.max)


def _raw(kind: pa.DataType, near: list[Fraction], rng: random.Random) -> int | float | None:
    """Draw a raw value: a limit of the type, one near a key, or any; sometimes NULL."""
    if rng.random() < 0.08:
        return None
    wished = rng.choice(near) + Fraction(rng.choice([0, 0, 1, -1]), rng.choice([1, 2, 1000]))
    if pa.types.is_floating(kind):
        most = float(np.finfo(kind.to_pandas_dtype()).max)
        some = [float(max(-most, min(most, wished))), math.nan, math.inf, -math.inf, -0.0, 2.0**63, -(2.0**63), 0.5]
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            return float(np.dtype(kind.to_pandas_dtype()).type(rng.choice(some)))
    least, most_ = _limits(kind)
    unit = _value(kind, 1)
    assert isinstance(unit, Fraction)
    return rng.choice([least, most_, rng.randint(least, most_), *([max(least, min(most_, int(wished / unit)))] * 4)])


JOINED = PAIRS[:: len(PAIRS) // 12]
"""Pairs of which all joins are tried; of the others one, as all read bounds in the same way."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ours", sorted({ours for ours, _ in PAIRS}, key=str), ids=str)
def test_bounds_of_any_type_match_what_sql_says(tmp_path: Path, ours: pa.DataType) -> None:
    for theirs in [theirs for key, theirs in PAIRS if key == ours]:
        _check(tmp_path, ours, theirs)


def _check(path: Path, ours: pa.DataType, theirs: pa.DataType) -> None:
    """Join with bounds of one type, and compare with a look at each pair of range and key."""
    rng = random.Random(f"{ours} {theirs}")
    least, most = _limits(ours)
    near = [max(least, min(most, number)) for number in (0, 1, -1, 7, 100, 86_400, 10**6)]
    raws = sorted({least, least + 1, most, most - 1, *near, *(rng.randint(least, most) for _ in range(30))})
    values = [_value(ours, raw) for raw in raws]
    finite = [value for value in values if isinstance(value, Fraction)]
    other = theirs if rng.random() < 0.7 else ours
    lows, highs = [_raw(theirs, finite, rng) for _ in range(150)], [_raw(other, finite, rng) for _ in range(150)]
    expected = []
    for number, (low, high) in enumerate(zip(lows, highs, strict=True)):
        begin, end = _value(theirs, low), _value(other, high)
        inside = [
            raw for raw, value in zip(raws, values, strict=True) if None not in (begin, end) and begin <= value <= end
        ]  # type: ignore[operator]
        expected += [(number, raw) for raw in inside] or [(number, None)]
    table = pa.table({"k": _array(ours, list(raws)), "v": pa.array([str(raw) for raw in raws])})
    batch = pa.record_batch({"n": range(150), "a": _array(theirs, lows), "b": _array(other, highs)})
    with Relation.build(table, path / "r", "k", page_size=512, shards=2, overwrite=True) as relation:
        for name in RANGED if (ours, theirs) in JOINED else ["oracle"]:
            join = semistream.create(name, relation, on=["a", "b"], condition="between", memory=300_000)
            result = pa.Table.from_batches(join.process([batch.slice(0, 70), batch.slice(70)]))
            found = [
                (n, None if v is None else int(v))
                for n, v in zip(result["n"].to_pylist(), result["v"].to_pylist(), strict=True)
            ]
            key = lambda pair: (pair[0], -math.inf if pair[1] is None else pair[1])  # noqa: E731
            assert sorted(found, key=key) == sorted(expected, key=key), name


@pytest.mark.parametrize("algorithm", RANGED)
def test_ranges_of_one_key_each_find_it_in_any_shard(tmp_path: Path, algorithm: str) -> None:
    keys = np.arange(0, 1500, 2)
    with Relation.build(pa.table({"k": keys, "v": -keys}), tmp_path / "r", "k", page_size=512, shards=3) as relation:
        join = semistream.create(algorithm, relation, on=["a", "b"], condition="between", memory=300_000)
        result = pa.Table.from_batches(join.process([pa.record_batch({"a": np.arange(1600), "b": np.arange(1600)})]))
    found = dict(zip(result["a"].to_pylist(), result["v"].to_pylist(), strict=True))
    assert result.num_rows == 1600
    assert found == {key: -key if key % 2 == 0 and key < 1500 else None for key in range(1600)}


def test_bounds_of_types_that_are_not_compared_are_refused_before_the_stream_comes(tmp_path: Path) -> None:
    moments = pa.array([0, 1], pa.timestamp("us", "UTC"))
    for key, bound in (
        (pa.array([1, 2]), pa.string()),
        (pa.array([1, 2]), pa.decimal128(3, -2)),
        (moments, pa.date32()),
        (moments, pa.timestamp("us")),
    ):
        with Relation.build(pa.table({"k": key}), tmp_path / "r", "k", overwrite=True) as relation:
            for name in RANGED:
                with pytest.raises(KeyTypeError, match="cannot be compared; cast the stream's column"):
                    semistream.create(
                        name, relation, on=["a", "b"], condition="between", schema=pa.schema({"a": bound, "b": bound})
                    )
                with pytest.raises(KeyColumnError, match="'b' is not in the stream"):
                    semistream.create(
                        name, relation, on=["a", "b"], condition="between", schema=pa.schema({"a": key.type})
                    )


@pytest.mark.parametrize("algorithm", ["hybridjoin", "front+ssij"])
def test_a_join_without_ranges_names_all_joins_that_have_them(tmp_path: Path, algorithm: str) -> None:
    with (
        Relation.build(pa.table({"id": [1, 2, 3]}), tmp_path / "r", key="id") as relation,
        pytest.raises(UnsupportedJoinError, match=f"^{re.escape(algorithm)} does not support condition") as refused,
    ):
        semistream.create(algorithm, relation, on=("low", "high"), condition="between")
    named = re.findall(r"'(\w+)'", str(refused.value).partition(";")[2])
    assert sorted(named) == sorted(RANGED), "the message names other joins than the registry has"
