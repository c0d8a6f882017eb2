"""Keys that R does not have are counted, the most frequent of them, by every join and in little memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.joins.interface.missing_keys import MissingKeys

COUNTS = {"-7": 40, "5000": 25, "1001": 3}


@pytest.fixture(scope="module")
def relations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("missing")
    ids = np.arange(1000)
    tables = {
        "numbers": pa.table({"id": ids, "name": [f"p{key}" for key in range(1000)]}),
        "texts": pa.table({"id": [f"{key}" for key in ids], "name": ids}),
    }
    for name, table in tables.items():
        semistream.Relation.build(table, place / name, "id").close()
    return {name: place / name for name in tables}


@pytest.mark.parametrize("how", ["left", "inner"])
@pytest.mark.parametrize("algorithm", list(semistream.algorithms()))
def test_every_join_counts_them(relations: dict[str, Path], algorithm: str, how: str) -> None:
    missing = [int(key) for key, count in COUNTS.items() for _ in range(count)]
    keys = np.random.default_rng(3).permutation([*missing, *range(0, 1000, 7)])
    for name, values in (("numbers", pa.array(keys)), ("texts", pa.array([str(key) for key in keys]))):
        stream = pa.table({"sale": range(len(keys) + 2), "id": pa.concat_arrays([values, pa.nulls(2, values.type)])})
        with semistream.Relation.open(relations[name]) as relation:
            join = semistream.create(algorithm, relation, on="id", how=how, memory="4MB")
            counted = MissingKeys()
            join.watch_missing(counted)
            for _ in join.process(stream.to_batches(max_chunksize=50)):
                pass
            assert counted.most() == COUNTS
            assert list(counted.most()) == list(COUNTS), "the most frequent first"
            assert join.stats.unmatched == sum(COUNTS.values()) + 2, "a NULL is no key"


def test_few_are_kept_and_none_is_overstated() -> None:
    missing = MissingKeys(kept=8)
    for _ in range(5):
        rare = np.random.default_rng(1).integers(0, 1 << 40, 1000)
        missing.add(pa.record_batch({"id": np.concatenate([rare, np.full(50, 7)])}), ["id"])
        assert len(missing) == 8
    assert missing.most(1) == {"7": 250}


@pytest.mark.parametrize("kind", [pa.string_view(), pa.dictionary(pa.int8(), pa.string()), pa.large_binary()])
def test_any_type_of_key(kind: pa.DataType) -> None:
    missing = MissingKeys()
    values = pa.array(["a", "b", None, "a"]).cast(kind)
    missing.add(pa.record_batch({"id": values}), ["id"])
    missing.add(pa.record_batch({"id": values.slice(3)}), ["id"])
    assert list(missing.most().values()) == [3, 1]


def test_keys_of_several_columns_and_long_ones_are_short_texts() -> None:
    missing = MissingKeys()
    missing.add(pa.record_batch({"a": ["x" * 500, "y", None], "b": [b"\xff\x00", b"", b"z"]}), ["a", "b"])
    assert missing.most() == {f"{'x' * 59}…, ff00": 1, "y, ": 1}


_NOT_UTF8 = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(np.array([0, 2, 3], np.int32)), pa.py_buffer(b"\xff\xfea")]
)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([_NOT_UTF8], {"a": 1, "\ufffd\ufffd": 1}),
        ([pa.array([1 << 62], pa.timestamp("us"))], {"<value out of range: 4611686018427387904>": 1}),
        ([pa.array([5], pa.timestamp("us", "Nowhere/Else"))], {"5": 1}),
        ([pa.array([1 << 30], pa.int32()).view(pa.date32())], {"<value out of range: 1073741824>": 1}),
        ([pa.array(["a", "b"]).dictionary_encode(), pa.array(["b"]).dictionary_encode()], {"b": 2, "a": 1}),
        ([pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"])], {"a": 2, "b": 1}),
        ([pa.array(["\x1b[2J\n"])], {"\\x1b[2J\\n": 1}),
    ],
)
def test_no_value_stops_the_count(parts: list[pa.Array], expected: dict[str, int]) -> None:
    missing = MissingKeys()
    for part in parts:
        missing.add(pa.record_batch({"id": part}), ["id"])
    assert missing.most() == expected
