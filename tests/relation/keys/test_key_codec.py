"""Keys: exact ones keep value and order, hashed ones are Spark's, and what cannot match does not."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raw_keys import codec, encode, from_raw
from semistream.core.errors import KeyColumnError, KeyTypeError
from semistream.relation.keys.key_codec import KeyCodec

if TYPE_CHECKING:
    pass

UNITS = ("s", "ms", "us", "ns")
INTEGERS = [getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)]
TICKS = [
    pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"),
    *map(pa.timestamp, UNITS), pa.timestamp("us", "UTC"), *map(pa.duration, UNITS),
]  # fmt: skip
SMALL_DECIMALS = [
    pa.decimal32(9, 2), pa.decimal64(18, 4), pa.decimal128(18, 0), pa.decimal128(5, 2), pa.decimal256(18, 1)
]  # fmt: skip


def raw_values(type_: pa.DataType) -> st.SearchStrategy[int]:
    """Any number that an exact type may hold."""
    if pa.types.is_decimal(type_):
        return st.integers(-(10**type_.precision) + 1, 10**type_.precision - 1)
    if pa.types.is_boolean(type_):
        return st.integers(0, 1)
    if pa.types.is_unsigned_integer(type_):
        return st.integers(0, 2**type_.bit_width - 1)
    return st.integers(-(2 ** (type_.bit_width - 1)), 2 ** (type_.bit_width - 1) - 1)


@pytest.mark.parametrize("type_", [*INTEGERS, pa.bool_(), *TICKS, *SMALL_DECIMALS], ids=str)
@settings(max_examples=40)
@given(data=st.data())
def test_exact_keys_keep_value_and_order(type_: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(raw_values(type_), min_size=1, max_size=20))
    key = codec(type_)
    assert key.exact
    array = from_raw(values, type_)
    keys, valid = encode(key, array)
    assert all(valid)
    assert np.argsort(keys, kind="stable").tolist() == np.argsort(values, kind="stable").tolist()
    assert len(set(keys)) == len(set(values))
    back = key.decode(np.array(keys, dtype=np.int64))
    assert back.type == type_
    assert back.equals(array)
    for count in (1, 7, 1000):
        shards = key.shards(np.array(keys, dtype=np.int64), count)
        assert shards.dtype == np.int32
        assert ((shards >= 0) & (shards < count)).all()


def test_slices_and_nulls() -> None:
    array = pa.array([9, 1, None, 3, 9], pa.int32()).slice(1, 3)
    keys, valid = encode(codec(pa.int32()), array)
    assert valid == [True, False, True]
    assert (keys[0], keys[2]) == (1, 3)
    text = pa.array(["x", "a", None, "b", "x"]).slice(1, 3)
    keys, valid = encode(codec(pa.string()), text)
    assert valid == [True, False, True]
    assert [keys[0], keys[2]] == encode(codec(pa.string()), pa.array(["a", "b"]))[0]


def test_no_rows() -> None:
    for type_ in (*INTEGERS, *TICKS, *SMALL_DECIMALS, pa.string(), pa.binary(4), pa.decimal128(30, 2)):
        assert encode(codec(type_), pa.array([], type_)) == ([], [])
        assert codec(type_).shards(np.zeros(0, dtype=np.int64), 4).tolist() == []


WIDE = st.integers(-(2**63), 2**64 - 1)


@settings(max_examples=200)
@given(st.sampled_from(INTEGERS), st.sampled_from(INTEGERS), st.lists(WIDE, max_size=10))
def test_integers_compare_as_numbers(ours: pa.DataType, theirs: pa.DataType, numbers: list[int]) -> None:
    def fits(number: int, type_: pa.DataType) -> bool:
        limits = np.iinfo(type_.to_pandas_dtype())
        return bool(int(limits.min) <= number <= int(limits.max))

    # The borders of both types, too.
    for type_ in (ours, theirs):
        limits = np.iinfo(type_.to_pandas_dtype())
        numbers = [*numbers, int(limits.min), int(limits.max), int(limits.max) + 1, int(limits.min) - 1]
    numbers = [number for number in numbers if fits(number, theirs)]
    key = codec(ours)
    key.check_stream(pa.schema([("it", theirs)]), "it")
    keys, valid = encode(key, pa.array(numbers, theirs))
    assert valid == [fits(number, ours) for number in numbers]
    kept = [number for number in numbers if fits(number, ours)]
    expected, _ = encode(key, pa.array(kept, ours))
    assert [k for k, v in zip(keys, valid, strict=True) if v] == expected


def test_timestamps_of_other_units_match_when_equal() -> None:
    key = codec(pa.timestamp("s"))
    keys, valid = encode(key, pa.array([0, 2_000_000_000, 1, -3_000_000_000, None], pa.timestamp("ns")))
    assert valid == [True, True, False, True, False]
    assert [k for k, v in zip(keys, valid, strict=True) if v] == [0, 2, -3]
    key = codec(pa.timestamp("ns"))
    most = 2**63 // 10**9
    keys, valid = encode(key, pa.array([1, most, most + 1, -most, -most - 1], pa.timestamp("s")))
    assert valid == [True, True, False, True, False]
    assert keys[:2] == [10**9, most * 10**9]
    assert keys[3] == -most * 10**9


def test_dates_and_times_of_other_widths() -> None:
    day = 86_400_000
    keys, valid = encode(codec(pa.date32()), pa.array([0, day, day + 1, -day, 2**62], pa.date64()))
    assert (keys[0], keys[1], keys[3]) == (0, 1, -1)
    assert valid == [True, True, False, True, False]
    keys, valid = encode(codec(pa.date64()), pa.array([-1, 1, 2**31 - 1], pa.date32()))
    assert keys == [-day, day, (2**31 - 1) * day]
    assert valid == [True, True, True]
    keys, valid = encode(codec(pa.time32("ms")), pa.array([1000, 1500, 10**9], pa.time64("us")))
    assert valid == [True, False, True]
    assert (keys[0], keys[2]) == (1, 10**6)
    keys, valid = encode(codec(pa.duration("ms")), pa.array([5], pa.duration("s")))
    assert (keys, valid) == ([5000], [True])


def number(text: str | None) -> decimal.Decimal | None:
    return None if text is None else decimal.Decimal(text)


def test_decimals_of_one_scale() -> None:
    key = codec(pa.decimal128(5, 2))
    values = [number("1.50"), number("-999.99"), number("1000.00"), number("184467440737095516.16"), None]
    keys, valid = encode(key, pa.array(values, pa.decimal128(38, 2)))
    assert valid == [True, True, False, False, False]
    assert keys[:2] == [150, -99999]
    assert encode(key, pa.array(values[:2], pa.decimal32(7, 2)))[0] == [150, -99999]
    assert encode(key, pa.array(values[:2], pa.decimal256(70, 2)))[0] == [150, -99999]
    long = codec(pa.decimal128(38, 2))
    assert not long.exact
    narrow = encode(long, pa.array([number("1.50"), number("-999.99")], pa.decimal64(10, 2)))
    wide = encode(long, pa.array([number("1.50"), number("-999.99")], pa.decimal256(50, 2)))
    assert narrow == wide == encode(long, pa.array([number("1.50"), number("-999.99")], long.types[0]))


TEXTS = [pa.string(), pa.large_string(), pa.string_view()]
BINARIES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)]


@pytest.mark.parametrize("family", [TEXTS, BINARIES], ids=["text", "binary"])
def test_byte_strings_of_every_kind_are_the_same_keys(family: list[pa.DataType]) -> None:
    values = ["ab", "cd", None, "zz"] if family is TEXTS else [b"ab", b"cd", None, b"zz"]
    answers = set()
    for ours in family:
        for theirs in family:
            codec(ours).check_stream(pa.schema([("it", theirs)]), "it")
            keys, valid = encode(codec(ours), pa.array(values, theirs))
            assert valid == [True, True, False, True]
            answers.add((keys[0], keys[1], keys[3]))
    assert len(answers) == 1


@pytest.mark.parametrize(
    "values",
    [
        pa.array([5, 7, None], pa.int32()),
        pa.array(["a", "b" * 50, None]),
        pa.array([decimal.Decimal(10) ** 30, decimal.Decimal(1), None], pa.decimal128(38, 0)),
        pa.array([dt.date(2020, 1, 1), dt.date(1960, 1, 1), None]),
    ],
    ids=["int", "string", "decimal", "date"],
)
def test_encoded_columns_are_the_same_keys(values: pa.Array) -> None:
    plain = codec(values.type)
    positions = [0, 1, 2, None, 1, 0]
    wanted = encode(plain, values.take(pa.array(positions)))

    def assert_same(array: pa.Array) -> None:
        assert codec(array.type).types == (values.type,)
        codec(array.type).check_stream(pa.schema([("it", values.type)]), "it")
        plain.check_stream(pa.schema([("it", array.type)]), "it")
        keys, valid = encode(plain, array)
        assert valid == wanted[1]
        for i in np.flatnonzero(valid):
            assert keys[i] == wanted[0][i]

    indices = pa.array([0, *positions], pa.uint8())
    dictionary = pa.DictionaryArray.from_arrays(indices, values).slice(1)
    assert_same(dictionary)
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 4, 5, 6, 7], pa.int32()), values.take(pa.array(positions)))
    assert_same(runs.slice(1))
    assert_same(pa.ExtensionArray.from_storage(pa.opaque(values.type, "t", "v"), values.take(pa.array(positions))))


def test_an_empty_dictionary_of_nulls() -> None:
    empty = pa.DictionaryArray.from_arrays(pa.array([None, None], pa.int8()), pa.array([], pa.string()))
    assert encode(codec(pa.string()), empty)[1] == [False, False]


def test_a_column_of_nulls_matches_nothing() -> None:
    for type_ in (pa.int64(), pa.string(), pa.decimal128(30, 1)):
        codec(type_).check_stream(pa.schema([("it", pa.null())]), "it")
        assert encode(codec(type_), pa.nulls(3))[1] == [False] * 3


SEVERAL = pa.schema([("a", pa.int32()), ("payload", pa.float64()), ("b", pa.string()), ("c", pa.timestamp("ns"))])


def test_several_columns() -> None:
    key = KeyCodec.for_schema(SEVERAL, ["a", "b"])
    assert (key.names, key.types, key.exact) == (("a", "b"), (pa.int32(), pa.string()), False)
    stream = pa.record_batch({"x": pa.array([1, 1, None, 2**40, 1], pa.int64()), "y": ["p", None, "p", "p", "q"]})
    keys, valid = key.encode(stream, on=["x", "y"])
    assert valid.tolist() == [True, False, False, False, True]
    assert keys[0] != keys[4]
    ours = pa.record_batch({"b": ["p", "q"], "a": pa.array([1, 1], pa.int32())})
    mine, valid = key.encode(ours)
    assert mine.tolist() == [keys[0], keys[4]]
    assert key.shards(mine, 8).tolist() == (mine % 8).tolist()


def test_finer_than_spark_still_differs() -> None:
    """Two moments in one microsecond are two keys, though Spark's hash sees only the microsecond."""
    key = KeyCodec.for_schema(SEVERAL, ["a", "c"])
    moments = pa.array([1000, 1001, 1002, 1000], pa.timestamp("ns"))
    keys, _ = key.encode(pa.record_batch({"a": pa.array([1] * 4, pa.int32()), "c": moments}))
    assert len(set(keys.tolist())) == 3
    assert keys[0] == keys[3]


def test_verify_compares_the_true_values() -> None:
    schema = pa.schema([("a", pa.int32()), ("b", pa.string()), ("d", pa.decimal128(30, 0))])
    key = KeyCodec.for_schema(schema, ["a", "b", "d"])
    big = decimal.Decimal(10) ** 25
    stream = pa.record_batch(
        {
            "x": pa.array([1, 1, 2, None, 1, 2**40, 1], pa.int64()),
            "y": pa.array(["p", "p", "p", "p", "pp", "p", "p"], pa.large_string()),
            "z": pa.array([big] * 7, pa.decimal128(38, 0)),
        }
    )
    ours = pa.record_batch(
        [
            pa.array([1, 1, 1, 1, 1, 0, 1], pa.int32()),
            pa.array(["p", "q", "p", "p", "p", "p", "p"]),
            pa.array([big] * 6 + [big + 1], pa.decimal128(30, 0)),
        ],
        schema=schema,
    )
    equal = key.verify(stream, ["x", "y", "z"], ours)
    assert equal.tolist() == [True, False, False, False, False, False, False]


@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=20))
def test_verify_is_equality_of_strings(pairs: list[tuple[str, str]]) -> None:
    left = pa.record_batch([pa.array([a for a, _ in pairs], pa.string())], ["it"])
    right = pa.record_batch([pa.array([b for _, b in pairs], pa.large_string())], ["key"])
    assert codec(pa.large_string()).verify(left, ["it"], right).tolist() == [a == b for a, b in pairs]


def test_a_hashed_key_has_no_way_back() -> None:
    with pytest.raises(KeyTypeError, match=r"\['key'\] of type \['string'\] is hashed"):
        codec(pa.string()).decode(np.zeros(1, dtype=np.int64))


def test_missing_columns_are_named_with_those_there_are() -> None:
    with pytest.raises(KeyColumnError, match="key column 'idd' is not in the relation; its columns are: id, name"):
        KeyCodec.for_schema(pa.schema([("id", pa.int64()), ("name", pa.string())]), "idd")
    with pytest.raises(KeyColumnError, match="key column 'x' is not in the stream; its columns are: y, z"):
        codec(pa.int64()).check_stream(pa.schema([("y", pa.int64()), ("z", pa.int64())]), "x")
    with pytest.raises(KeyColumnError, match="key column 'x' is not in the batch; its columns are: y"):
        codec(pa.int64()).encode(pa.record_batch({"y": [1]}), on=["x"])
    with pytest.raises(KeyColumnError, match="at least one column"):
        KeyCodec.for_schema(SEVERAL, [])
    with pytest.raises(KeyColumnError, match="'a' occurs twice"):
        KeyCodec.for_schema(SEVERAL, ["a", "b", "a"])
    with pytest.raises(KeyColumnError, match="occurs 2 times in the relation; rename"):
        KeyCodec.for_schema(pa.schema([("id", pa.int64()), ("id", pa.int64())]), "id")
    with pytest.raises(KeyColumnError, match=r"key has 1 column\(s\), \['key'\], but the join names 2"):
        codec(pa.int64()).check_stream(SEVERAL, ["a", "b"])


@pytest.mark.parametrize(
    "type_", [pa.float32(), pa.float64(), pa.float16(), pa.dictionary(pa.int8(), pa.float64())], ids=str
)
def test_floats_are_no_keys(type_: pa.DataType) -> None:
    with pytest.raises(KeyColumnError, match=r"cannot be a key.*cast the column to an integer or a decimal"):
        codec(type_)


@pytest.mark.parametrize(
    "type_", [pa.list_(pa.int8()), pa.struct([]), pa.null(), pa.month_day_nano_interval()], ids=str
)
def test_nor_are_these(type_: pa.DataType) -> None:
    with pytest.raises(KeyColumnError, match="cannot be a key"):
        codec(type_)


@pytest.mark.parametrize(
    ("ours", "theirs", "remedy"),
    [
        (pa.int64(), pa.string(), r"first: try_cast\(it as bigint\) in SQL, or \.cast\(pa\.int64\(\)\)"),
        (pa.int32(), pa.float64(), r"some of its values are not .* when it = try_cast\(it as int\) .*pa\.int32\(\)"),
        (pa.string(), pa.int64(), r"cast\(it as string\).*pa\.string\(\)"),
        (pa.string(), pa.binary(), r"cast\(it as string\)"),
        (pa.binary(4), pa.string(), r"cast\(it as binary\).*pa\.binary\(4\)"),
        (pa.bool_(), pa.int8(), r"cast\(it as boolean\).*pa\.bool_\(\)"),
        (pa.date32(), pa.timestamp("us"), r"some of its values are not .*try_cast\(it as date\).*pa\.date32\(\)"),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), r"timestamp_ntz.*pa\.timestamp\('us'\)"),
        (pa.timestamp("ms", "UTC"), pa.timestamp("ms"), r"as timestamp\).*pa\.timestamp\('ms', 'UTC'\)"),
        (pa.time64("us"), pa.duration("us"), r"pa\.time64\('us'\)"),
        (pa.decimal128(10, 2), pa.decimal128(10, 3), r"decimal\(10,2\)\).*pa\.decimal128\(10, 2\)"),
        (pa.decimal128(10, 2), pa.int64(), r"decimal128\(10, 2\)"),
        (pa.int64(), pa.list_(pa.int64()), "int64"),
    ],
    ids=str,
)
def test_mismatched_types_name_both_and_the_cast(ours: pa.DataType, theirs: pa.DataType, remedy: str) -> None:
    with pytest.raises(KeyTypeError, match=remedy) as caught:
        codec(ours).check_stream(pa.schema([("it", theirs)]), ["it"])
    assert f"'it' is {theirs}" in str(caught.value)
    assert f"'key' is {ours}" in str(caught.value)


def test_shards_must_be_some() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        codec(pa.int64()).shards(np.zeros(1, dtype=np.int64), 0)


def test_repr_says_what_it_is() -> None:
    assert repr(codec(pa.int64())) == "KeyCodec(key: int64; exact)"
