"""How columns are packed is chosen from their values, and is the smallest that the values allow."""

from __future__ import annotations

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.relation.rows.packed import packing_choice
from semistream.relation.rows.packed.packing import (
    BYTES,
    CONSTANT,
    DICTIONARY,
    OFFSET,
    SYMBOLS,
    ColumnPacking,
    Packing,
)
from semistream.relation.rows.packed.packing_choice import PackingChoice
from semistream.relation.rows.packed.symbol_table import SymbolTable
from semistream.relation.rows.row_cells import Cells
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.rows.row_columns import BytesColumn

ROWS = 3000
RNG = np.random.default_rng(7)
NAMES = [RNG.bytes(8).hex() for _ in range(4000)]


def chosen(batch: pa.RecordBatch, batches: int = 1) -> Packing | None:
    choice = PackingChoice(batch.schema)
    step = -(-batch.num_rows // batches)
    for begin in range(0, batch.num_rows, step):
        choice.add(batch.slice(begin, step))
    packing = choice.choose(range(batch.num_columns))
    if packing is not None:
        codec = RowCodec(batch.schema, packing.by_name(batch.schema.names, range(batch.num_columns)))
        rows = codec.encode(batch)
        assert codec.decode(rows.data, rows.starts).to_pylist() == batch.to_pylist()
    return packing


def column(array: pa.Array) -> ColumnPacking | None:
    """Return the packing of one column, next to others that make packing worth while."""
    texts = pa.array([f"number {i % 7}" for i in range(len(array))])
    packing = chosen(pa.record_batch({"it": array, "a": texts, "b": texts}))
    assert packing is not None
    return packing.by_number.get(0)


def rare_values(seed: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return rows that pack well, and rows of the same schema whose values none of their packings expects."""
    rng = np.random.default_rng(seed)
    usual, rare, count = {}, {}, 400
    for number in range(int(rng.integers(1, 12))):
        name, way = f"c{number}", int(rng.integers(6))
        if way < 4:
            kind = (pa.int16(), pa.int32(), pa.int64(), pa.decimal128(30, 2))[way]
            most = (1 << 15, 1 << 31, 1 << 62, 10**28)[way] - 1
            values = rng.integers(0, int(rng.choice([1, 5, 300])), count).tolist()
            usual[name], rare[name] = (pa.array(some, pa.int64()).cast(kind) if way < 3 else pa.array(
                [decimal.Decimal(one) for one in some], kind) for some in (values, [-most // 2] * 50))  # fmt: skip
        else:
            words = [f"the usual text {i % int(rng.choice([1, 40, 4000]))}" for i in rng.permutation(count)]
            usual[name] = pa.array(words)
            rare[name] = pa.array(["".join(map(chr, rng.integers(33, 300, rng.integers(0, 40)))) for _ in range(50)])
    return pa.record_batch(usual), pa.record_batch(rare)


@pytest.mark.parametrize("seed", range(40))
def test_no_row_grows_by_more_than_was_allowed(seed: int) -> None:
    usual, rare = rare_values(seed)
    numbers, names = range(usual.num_columns), usual.schema.names
    plain = RowCodec(usual.schema).lengths(rare)
    for growth in (None, 1000, 40, 20, 7, 0):
        choice = PackingChoice(usual.schema)
        choice.add(usual)
        packing = choice.choose(numbers, growth=growth)
        if packing is not None and growth is not None:
            packed = RowCodec(usual.schema, packing.by_name(names, numbers))
            assert (packed.encode(rare).lengths <= plain + growth + 4).all(), "4 bytes: the length of a packed row"


DAY = 86_400_000_000
CASES: dict[str, tuple[pa.Array, tuple[str, int, int, int]]] = {
    "few numbers": (pa.array(np.arange(ROWS) % 200 + 1000), (OFFSET, 1, 1000, 1)),
    "numbers of two bytes": (pa.array(np.arange(ROWS) - 500), (OFFSET, 2, -500, 1)),
    "whole days": (pa.array((np.arange(ROWS) % 900 + 18_000) * DAY, pa.timestamp("us")),
                   (OFFSET, 2, 18_000 * DAY, DAY)),
    "large unsigned numbers": (pa.array(np.arange(ROWS, dtype=np.uint64) % 9 + ((1 << 64) - 9)), (OFFSET, 1, -9, 1)),
    "prices": (pa.array([decimal.Decimal(100 + 25 * (i % 100)) / 100 for i in range(ROWS)], pa.decimal128(20, 2)),
               (OFFSET, 1, 100, 25)),
    "some outliers": (pa.array(np.where(np.arange(ROWS) % 500 == 0, 1 << 50, np.arange(ROWS) % 100)),
                      (OFFSET, 1, 0, 1)),
    "nearly always NULL": (pa.array([i if i % 100 == 0 else None for i in range(ROWS)]), (CONSTANT, 0, 0, 1)),
    "always NULL": (pa.nulls(ROWS, pa.int64()), (CONSTANT, 0, 0, 1)),
    "nearly always one number": (pa.array(np.where(np.arange(ROWS) % 100 == 0, np.arange(ROWS), 5)),
                                 (CONSTANT, 0, 0, 1)),
    "nearly always one word": (pa.array(["EUR" if i % 100 else "USD" for i in range(ROWS)]), (CONSTANT, 0, 0, 1)),
    "few words": (pa.array([f"word {i % 50}" for i in range(ROWS)]), (DICTIONARY, 1, 0, 1)),
    "words of a dictionary": (pa.array([f"word {i % 50}" for i in range(ROWS)]).dictionary_encode(),
                              (DICTIONARY, 1, 0, 1)),
    "views in a dictionary": (
        pa.DictionaryArray.from_arrays(np.arange(ROWS) % 9, pa.array(["red", "blue", "green"] * 3, pa.string_view())),
        (DICTIONARY, 1, 0, 1),
    ),
    "some more words": (pa.array([NAMES[i % 300] for i in range(ROWS)], pa.binary_view()), (DICTIONARY, 2, 0, 1)),
    "text": (pa.array([f"this is the text number {i:06} of all" for i in range(ROWS)], pa.string_view()),
             (SYMBOLS, 1, 0, 1)),
    "random bytes": (pa.array([RNG.bytes(20) for _ in range(ROWS)]), (BYTES, 1, 0, 1)),
    "long random bytes": (pa.array([RNG.bytes(400) for _ in range(ROWS)]), (BYTES, 2, 0, 1)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_chosen(case: str) -> None:
    array, expected = CASES[case]
    packing = column(array)
    assert packing is not None
    assert (packing.kind, packing.width, packing.base, packing.divisor) == expected


@pytest.mark.parametrize(
    "array",
    [
        pa.array(RNG.integers(-(1 << 63), (1 << 63) - 1, ROWS)), pa.array(RNG.random(ROWS)), pa.array([True] * ROWS),
        pa.array([[1]] * ROWS), pa.array([b"123"] * ROWS, pa.binary(3)), pa.nulls(ROWS), pa.array([{"a": 1}] * ROWS),
    ],
    ids=lambda array: str(array.type),
)  # fmt: skip
def test_what_is_left_as_it_is(array: pa.Array) -> None:
    assert column(array) is None


def test_random_bytes_are_not_packed() -> None:
    for size in (40, 128, 1000):
        blobs = pa.array([RNG.bytes(size) for _ in range(ROWS)])
        assert chosen(pa.record_batch({"blob": blobs})) is None
        fixed = pa.array([RNG.bytes(size) for _ in range(ROWS)], pa.binary(size))
        assert chosen(pa.record_batch({"a": fixed, "b": np.arange(ROWS) % 100})) is None


def test_nothing_is_chosen_from_nothing() -> None:
    schema = pa.schema({"name": pa.string()})
    choice = PackingChoice(schema)
    assert choice.choose([0]) is None
    choice.add(pa.record_batch({"name": pa.array([], pa.string())}))
    assert choice.choose([0]) is None


def test_numbers_at_both_ends_of_the_range() -> None:
    """Their distance does not fit into 64 bits with a sign."""
    ends = pa.array([-(1 << 63), (1 << 63) - 1, 0, None] * 500)
    assert chosen(pa.record_batch({"it": ends, "a": ["x"] * 2000, "b": ["y"] * 2000})) is not None


def test_new_values_are_expected_in_more_rows() -> None:
    """Nearly every value is new: a dictionary of those that are known would be of little use for others."""
    batch = pa.record_batch({"it": [f"{i * 7919 % 100_003:06}" for i in range(ROWS)], "same": ["x" * 20] * ROWS})
    kinds = []
    for more in (False, True):
        choice = PackingChoice(batch.schema)
        for _ in range(1 if more else 20):  # each value occurs often
            choice.add(batch)
        packing = choice.choose([0, 1], more)
        assert packing is not None
        kinds.append(packing.by_number[0].kind)
    assert kinds == [DICTIONARY, SYMBOLS]


def test_some_columns_are_never_packed() -> None:
    batch = pa.record_batch({"a": ["one"] * ROWS, "b": np.arange(ROWS) % 3, "c": ["two"] * ROWS})
    choice = PackingChoice(batch.schema, never=["a"])
    choice.add(batch)
    packing = choice.choose([4, 9, 7])
    assert packing is not None
    assert [one.number for one in packing.columns] == [7, 9]


def test_the_choice_is_the_same_for_the_same_batches() -> None:
    words = pa.array([f"{i % 321} and some text {i}" for i in range(30_000)])
    batch = pa.record_batch({"a": words, "n": np.arange(30_000)})
    assert chosen(batch, 7) == chosen(batch, 7)


def test_batches_of_all_types_are_sampled() -> None:
    batch = pa.record_batch({
        "list": pa.array([["a", None], None, []] * 4000), "view": pa.array(["x", None, "longer than 12 bytes"] * 4000,
        pa.string_view()), "word": pa.array(["x", None, "y"] * 4000).dictionary_encode(),
        "when": pa.array([dt.datetime(2020, 1, 1), None, dt.datetime(2021, 1, 1)] * 4000),
    })  # fmt: skip
    packing = chosen(batch, 9)
    assert packing is not None
    assert [one.number for one in packing.columns] == [1, 2, 3]


@pytest.mark.parametrize("type_", [pa.string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())])
def test_some_of_the_later_rows_add_words(type_: pa.DataType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing_choice, "_FIRST_ROWS", 1000)
    words = ["red", "green"] * 600 + ["blue", "grey"] * 400
    batch = pa.record_batch({"it": pa.array(words).cast(type_)})
    choice = PackingChoice(batch.schema)
    for begin in range(0, 2000, 125):
        choice.add(batch.slice(begin, 125))
    packing = choice.choose([0])
    assert packing is not None
    assert packing.columns[0].kind == DICTIONARY
    assert packing.columns[0].table == b"greenredbluegrey"  # the most frequent first


def test_tables_are_bounded() -> None:
    columns = {f"c{at}": pa.array(NAMES[at:] + NAMES[:at]).take(np.arange(16_000) % 4000) for at in range(5)}
    packing = chosen(pa.record_batch(columns))
    assert packing is not None
    assert packing.nbytes <= 256 << 10
    assert {DICTIONARY, SYMBOLS} <= {one.kind for one in packing.columns}


@settings(max_examples=50)
@given(
    st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([b"abcabcabc", b"\0\0\0", b"\xff" * 9])), max_size=40)
)
def test_symbols_of_any_bytes(values: list[bytes]) -> None:
    cells = BytesColumn(pa.large_binary()).split(pa.array(values, pa.large_binary()))[0]
    trained = SymbolTable.trained(cells)
    again = SymbolTable(trained.table, trained.lengths)
    assert sum(again.compressed(cells)[2]) <= 2 * sum(map(len, values))
    schema = pa.schema({"it": pa.binary()})
    packing = ColumnPacking(0, SYMBOLS, "bytes", 2, table=trained.table, lengths=trained.lengths)
    codec = RowCodec(schema, {"it": packing})
    rows = codec.encode(pa.record_batch([values], schema=schema))
    assert codec.decode(rows.data, rows.starts).column(0).to_pylist() == values


def test_symbols_are_as_long_as_they_can_be() -> None:
    text = b"0123456789abcdef" * 4
    cells = Cells(None, np.frombuffer(text * 8, np.uint8), np.arange(8) * len(text), np.full(8, len(text)))
    assert SymbolTable.trained(cells).compressed(cells)[2].tolist() == [len(text) // 8] * 8
