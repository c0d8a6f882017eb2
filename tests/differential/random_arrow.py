"""Random Arrow types and arrays of them: every type there is, nested, encoded, sliced, with odd and long values."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["plain_values", "random_array", "random_type"]

_UNITS = ("s", "ms", "us", "ns")
_ZONES = (None, "UTC", "Europe/Berlin", "+05:30")
_NESTED_SHARE = 0.35
_CONTEXT = Context(prec=80)


def random_type(rng: Random, depth: int = 3) -> pa.DataType:
    """Draw a type; ``depth`` bounds how deep it is nested."""
    if depth > 0 and rng.random() < _NESTED_SHARE:
        return _nested_type(rng, depth - 1)
    return rng.choice(_LEAVES)(rng)


_LEAVES: list[Callable[[Random], pa.DataType]] = [
    lambda r: pa.bool_(),
    lambda r: r.choice([pa.int8(), pa.int16(), pa.int32(), pa.int64()]),
    lambda r: r.choice([pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]),
    lambda r: r.choice([pa.float16(), pa.float32(), pa.float64()]),
    lambda r: r.choice([pa.decimal32(7, 2), pa.decimal64(15, 3), pa.decimal128(30, 4), pa.decimal256(60, 5)]),
    lambda r: r.choice([pa.date32(), pa.date64()]),
    lambda r: r.choice([pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]),
    lambda r: pa.timestamp(r.choice(_UNITS), r.choice(_ZONES)),
    lambda r: pa.duration(r.choice(_UNITS)),
    lambda r: pa.month_day_nano_interval(),
    lambda r: r.choice([pa.string(), pa.large_string(), pa.string_view()]),
    lambda r: r.choice([pa.string(), pa.string(), pa.large_string()]),
    lambda r: r.choice([pa.binary(), pa.large_binary(), pa.binary_view()]),
    lambda r: pa.binary(r.choice([0, 1, 5, 16])),
    lambda r: pa.null(),
    lambda r: r.choice([pa.uuid(), pa.json_(), pa.bool8()]),
]


def _nested_type(rng: Random, depth: int) -> pa.DataType:
    inner = random_type(rng, depth)
    kind = rng.randrange(12)
    if kind <= 1:
        return pa.list_(inner)
    if kind == 2:
        return rng.choice([pa.large_list, pa.list_view, pa.large_list_view])(inner)
    if kind == 3:
        return pa.list_(inner, rng.choice([0, 1, 3]))
    if kind <= 6:
        names = "abc"[: rng.choice([0, 1, 2, 2, 3])]
        return pa.struct([pa.field(name, random_type(rng, depth)) for name in names])
    if kind == 7:
        return pa.map_(rng.choice([pa.string(), pa.int32()]), inner)
    if kind <= 9:
        index = rng.choice([pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.int64()])
        values = rng.choice(
            [pa.string(), pa.string(), pa.int64(), pa.binary(), pa.decimal128(20, 3), pa.large_string()]
        )
        return pa.dictionary(index, values, ordered=rng.random() < 0.2)
    if kind == 10:
        ends = rng.choice([pa.int16(), pa.int32(), pa.int64()])
        return pa.run_end_encoded(ends, rng.choice([pa.int64(), pa.string(), pa.bool_(), pa.float32()]))
    fields = [pa.field(name, random_type(rng, min(depth, 1))) for name in "xy"]
    return rng.choice([pa.dense_union, pa.sparse_union])(fields)


def random_array(kind: pa.DataType, rows: int, rng: Random, longest: int = 30, nulls: float | None = None) -> pa.Array:
    """Draw values of a type, often as a slice of a longer array; texts are up to ``longest`` letters long."""
    share = rng.choice([0.0, 0.0, 0.1, 0.5, 1.0]) if nulls is None else nulls
    before, after = (rng.choice([0, 0, 1, 3, 9]) for _ in range(2))
    whole = _array(kind, before + rows + after, rng, longest, share)
    return whole.slice(before, rows)


def _array(kind: pa.DataType, rows: int, rng: Random, longest: int, share: float) -> pa.Array:
    if pa.types.is_null(kind):
        return pa.nulls(rows)
    if isinstance(kind, pa.BaseExtensionType):
        storage = _array(kind.storage_type, rows, rng, longest, share)
        if kind == pa.json_():
            storage = pa.array([None if v is None else '{"a": 1}' for v in storage.to_pylist()], kind.storage_type)
        return pa.ExtensionArray.from_storage(kind, storage)
    if pa.types.is_dictionary(kind):
        return _dictionary(kind, rows, rng, longest, share)
    if pa.types.is_run_end_encoded(kind):
        return _runs(kind, rows, rng, longest, share)
    if pa.types.is_union(kind):
        return _union(kind, rows, rng, longest, share)
    missing = _mask(rows, rng, share)
    if pa.types.is_struct(kind):
        if kind.num_fields == 0:
            return pa.array([None if gone else {} for gone in missing], kind)
        children = [_array(field.type, rows, rng, longest, share) for field in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=pa.array(missing))
    if pa.types.is_fixed_size_list(kind):
        child = _array(kind.value_type, rows * kind.list_size, rng, longest, share)
        if kind.list_size == 0:
            valid = pa.py_buffer(np.packbits(~missing, bitorder="little").tobytes())
            return pa.Array.from_buffers(kind, rows, [valid], children=[child])
        return pa.FixedSizeListArray.from_arrays(child, type=kind, mask=pa.array(missing))
    if pa.types.is_nested(kind):
        return _lists(kind, rows, rng, longest, share, missing)
    return _leaf(kind, rows, rng, longest, missing)


def _mask(rows: int, rng: Random, share: float) -> np.ndarray:
    return np.random.default_rng(rng.randrange(1 << 30)).random(rows) < share


def _lists(kind: pa.DataType, rows: int, rng: Random, longest: int, share: float, missing: np.ndarray) -> pa.Array:
    most = rng.choice([1, 3, 3, 8])
    sizes = np.array([rng.randint(0, most) for _ in range(rows)], np.int64)
    if rows and longest > 1000 and rng.random() < 0.5:
        sizes[rng.randrange(rows)] = longest // 12  # many short values: encoded they are longer than in Arrow
    sizes[missing] = 0
    ends = np.concatenate([[0], np.cumsum(sizes)])
    total = int(ends[-1])
    item_length = 8 if total > 10 * rows else min(longest, 30)
    wide = pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind)
    offsets = pa.array(ends, pa.int64() if wide else pa.int32())
    masked = pa.array(missing)
    if pa.types.is_map(kind):
        keys = _array(kind.key_type, total, rng, item_length, 0.0)
        items = _array(kind.item_type, total, rng, item_length, share)
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=masked)
    child = _array(kind.value_type, total, rng, item_length, share)
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        made = pa.LargeListViewArray if wide else pa.ListViewArray
        lengths = pa.array(sizes, pa.int64() if wide else pa.int32())
        begins = pa.array(ends[:-1], pa.int64() if wide else pa.int32())
        return made.from_arrays(begins, lengths, child, type=kind, mask=masked)
    made = pa.LargeListArray if wide else pa.ListArray
    return made.from_arrays(offsets, child, type=kind, mask=masked)


def _dictionary(kind: pa.DataType, rows: int, rng: Random, longest: int, share: float) -> pa.Array:
    """Dictionaries of their own for each array: unused and repeated entries, NULLs among them."""
    size = rng.choice([1, 2, 7, 60])
    words = _array(kind.value_type, size, rng, longest, rng.choice([0.0, 0.0, 0.2]))
    missing = _mask(rows, rng, share)
    places = np.array([rng.randrange(size) for _ in range(rows)], np.int64)
    return pa.DictionaryArray.from_arrays(pa.array(places, kind.index_type, mask=missing), words, ordered=kind.ordered)


def _runs(kind: pa.DataType, rows: int, rng: Random, longest: int, share: float) -> pa.Array:
    ends: list[int] = []
    while (ends[-1] if ends else 0) < rows:
        ends.append(min(rows, (ends[-1] if ends else 0) + rng.choice([1, 1, 2, 10, 40])))
    values = _array(kind.value_type, len(ends), rng, longest, share)
    return pa.RunEndEncodedArray.from_arrays(pa.array(ends, kind.run_end_type), values)


def _union(kind: pa.DataType, rows: int, rng: Random, longest: int, share: float) -> pa.Array:
    which = np.array([rng.randrange(kind.num_fields) for _ in range(rows)], np.int8)
    fields = [kind.field(number) for number in range(kind.num_fields)]
    names = [field.name for field in fields]
    if kind.mode == "sparse":
        children = [_array(field.type, rows, rng, longest, share) for field in fields]
        return pa.UnionArray.from_sparse(pa.array(which), children, names)
    counts = [int((which == number).sum()) for number in range(kind.num_fields)]
    children = [_array(field.type, count, rng, longest, share) for field, count in zip(fields, counts, strict=True)]
    places = np.empty(rows, np.int32)
    for number, count in enumerate(counts):
        places[which == number] = np.arange(count)
    return pa.UnionArray.from_dense(pa.array(which), pa.array(places), children, names)


def _leaf(kind: pa.DataType, rows: int, rng: Random, longest: int, missing: np.ndarray) -> pa.Array:
    """Draw from a few values, odd ones among them."""
    words = _words(kind, rng, longest)
    chosen = [None if gone else words[rng.randrange(len(words))] for gone in missing]
    if longest > 1000 and rows and isinstance(words[0], str | bytes) and not pa.types.is_fixed_size_binary(kind):
        letter = b"w" if isinstance(words[0], bytes) else "w"
        chosen[rng.randrange(rows)] = letter * rng.randint(longest // 2, longest)
    if _ticks(kind) is not None:
        return pa.array(chosen, _ticks(kind)).view(kind)
    return pa.array(chosen, kind)


def _ticks(kind: pa.DataType) -> pa.DataType | None:
    """Return the integers that a type of dates or times consists of."""
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return None


def _words(kind: pa.DataType, rng: Random, longest: int) -> list[Any]:
    if pa.types.is_boolean(kind):
        return [True, False]
    if pa.types.is_integer(kind):
        info = np.iinfo(kind.to_pandas_dtype())
        return [info.min, info.max, 0, 1, *(rng.randint(info.min, info.max) for _ in range(6))]
    if pa.types.is_floating(kind):
        numbers = [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1.5, rng.uniform(-1000, 1000)]
        return [np.float16(number) for number in numbers] if pa.types.is_float16(kind) else numbers
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return [Decimal(n).scaleb(-kind.scale, _CONTEXT) for n in (0, 1, -1, most, -most, rng.randint(-most, most))]
    if pa.types.is_interval(kind):
        return [pa.MonthDayNano([n, -n, n * 10**9]) for n in (0, 1, -1, 2**31 - 1)]
    if _ticks(kind) is not None:
        return _moments(kind, rng)
    if pa.types.is_fixed_size_binary(kind):
        return [bytes(rng.randrange(256) for _ in range(kind.byte_width)) for _ in range(5)]
    texts = ["", "a", "ä€😀", "\0", "long " * 4, *("x" * rng.randint(0, min(longest, 60)) for _ in range(4))]
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return texts if is_text else [text.encode() for text in texts]


def _moments(kind: pa.DataType, rng: Random) -> list[int]:
    if pa.types.is_time(kind):
        day = 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
        return [0, day - 1, rng.randrange(day)]
    if pa.types.is_date64(kind):
        return [day * 86_400_000 for day in (0, -1, 1, 20_000, -700_000, 2_900_000, rng.randint(-9999, 9999))]
    info = np.iinfo(np.int32 if kind.bit_width == 32 else np.int64)
    return [0, 1, -1, info.max, info.min, rng.randint(-(10**6), 10**6), rng.randint(info.min, info.max)]


def plain_values(array: pa.Array | pa.ChunkedArray) -> list[str]:
    """Write each value as text; two values are the same if their texts are."""
    if isinstance(array, pa.ChunkedArray):
        return [text for chunk in array.chunks for text in plain_values(chunk)]
    ticks = _ticks(array.type)
    if ticks is not None:
        array = array.view(ticks)
    if _has_words(array.type):
        return list(map(repr, array.to_pylist()))
    return [_text(value) for value in array]


@cache
def _has_words(kind: pa.DataType) -> bool:
    """Say whether Python has a value of its own for every value of a type, and lists them quickly."""
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_temporal(kind) or pa.types.is_dictionary(kind):
        return False
    if pa.types.is_union(kind) or pa.types.is_run_end_encoded(kind) or pa.types.is_map(kind):
        return False
    return all(_has_words(kind.field(at).type) for at in range(kind.num_fields))


def _text(scalar: Any) -> str:
    """Write one value; those that Python has no words for, as the numbers that they are."""
    if not scalar.is_valid:
        return "None"
    kind = scalar.type
    if isinstance(kind, pa.BaseExtensionType):
        return _text(scalar.value)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind) or pa.types.is_union(kind):
        inner = scalar.value
        return "None" if inner is None else _text(inner)
    if pa.types.is_struct(kind):
        return "{" + ", ".join(_text(scalar[number]) for number in range(kind.num_fields)) + "}"
    if pa.types.is_map(kind) or pa.types.is_nested(kind):
        return "[" + ", ".join(map(_text, scalar.values)) + "]"
    if _ticks(kind) is not None:
        return str(scalar.value)
    return repr(scalar.as_py())
