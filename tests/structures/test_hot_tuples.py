"""The cache of hot tuples against a plain model of it, in memory and in mapped files."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from semistream.relation.pages.page_layout import FIRST, LAST, WHOLE
from semistream.relation.rows.row_codec import RowCodec
from semistream.structures.array_source import MappedArrays, in_memory
from semistream.structures.hot.candidates import Candidates, find_candidates
from semistream.structures.hot.hot_tuples import HotTuples

SINGLE = FIRST | LAST | WHOLE


def rows_of(codec: RowCodec, keys: list[int], variable: bool):
    name = [f"row of {key} " * (key % 5 if variable else 1) for key in keys]
    columns = {"key": keys, "name": name} if variable else {"key": keys, "twice": [2 * key for key in keys]}
    return codec.encode(pa.record_batch(columns, schema=codec.schema))


def codec_for(variable: bool) -> RowCodec:
    other = pa.field("name", pa.string()) if variable else pa.field("twice", pa.int64())
    return RowCodec(pa.schema([pa.field("key", pa.int64()), other]))


def admit(cache: HotTuples, codec: RowCodec, groups: dict[int, int], frequency: dict[int, int], variable: bool) -> None:
    """Offer keys with so many rows each."""
    keys = list(groups)
    each = [key for key in keys for _ in range(groups[key])]
    rows = rows_of(codec, each, variable)
    bounds = np.concatenate([[0], np.cumsum([groups[key] for key in keys])]).astype(np.int64)
    candidates = Candidates(
        np.array(keys, np.int64), np.array([frequency[key] for key in keys], np.int64), bounds, rows.starts,
        np.full(len(each), SINGLE, np.uint8),
    )  # fmt: skip
    cache.admit(candidates, rows.data)


def held(cache: HotTuples, codec: RowCodec, keys: list[int]) -> list[list[int]]:
    found, positions, slots = cache.look_up(np.array(keys, np.int64))
    data, starts, _ = cache.rows(slots)
    values = codec.decode(data, starts).column("key").to_pylist()
    result: list[list[int]] = [[] for _ in keys]
    for position, value in zip(positions, values, strict=True):
        result[position].append(value)
    assert [bool(rows) for rows in result] == found.tolist()
    return result


@pytest.mark.parametrize("variable", [False, True])
@pytest.mark.parametrize("most_rows", [1, 4])
def test_holds_whole_keys_and_only_what_it_was_given(variable, most_rows):
    rng = np.random.default_rng(7)
    codec = codec_for(variable)
    cache = HotTuples(codec, 50, 40.0)
    rows = {key: int(rng.integers(1, most_rows + 1)) for key in range(200)}
    for _ in range(60):
        keys = rng.choice(200, size=10, replace=False).tolist()
        admit(cache, codec, {key: rows[key] for key in keys}, dict.fromkeys(keys, int(rng.integers(1, 6))), variable)
        cache.check()
        asked = rng.integers(0, 200, size=30).tolist()
        for key, found in zip(asked, held(cache, codec, asked), strict=True):
            assert found in ([], [key] * rows[key]), f"key {key} came back as {found}"
        gone = rng.choice(200, size=3, replace=False)
        cache.remove(gone)
        cache.check()
        assert held(cache, codec, gone.tolist()) == [[], [], []]
    assert cache.evictions > 0
    cache.clear()
    cache.check()
    assert len(cache) == 0


def test_the_least_frequent_makes_room():
    codec = codec_for(False)
    cache = HotTuples(codec, 4)
    admit(cache, codec, dict.fromkeys([1, 2, 3, 4], 1), {1: 1, 2: 1, 3: 1, 4: 1}, False)
    cache.look_up(np.array([1, 1, 2, 4, 4, 4]))
    admit(cache, codec, {9: 1}, {9: 2}, False)  # more frequent than 3, which was never asked for
    assert held(cache, codec, [1, 2, 3, 4, 9]) == [[1], [2], [], [4], [9]]
    admit(cache, codec, {10: 1}, {10: 1}, False)  # less frequent than all
    assert held(cache, codec, [10]) == [[]]


def test_frequencies_fade():
    codec = codec_for(False)
    cache = HotTuples(codec, 2, aging=4)
    admit(cache, codec, {1: 1, 2: 1}, {1: 1, 2: 1}, False)
    cache.look_up(np.full(64, 1))
    for _ in range(12):
        cache.look_up(np.full(8, 2))
    admit(cache, codec, {3: 1}, {3: 2}, False)
    assert held(cache, codec, [1, 2, 3]) == [[], [2], [3]]


@pytest.mark.parametrize("variable", [False, True])
def test_another_process_takes_it_up_from_mapped_files(tmp_path, variable):
    codec = codec_for(variable)
    left = HotTuples(codec, 20, 60.0, arrays=MappedArrays(tmp_path))
    admit(left, codec, {5: 2, 6: 1, 7: 3}, {5: 3, 6: 2, 7: 9}, variable)
    before = held(left, codec, [5, 6, 7, 8])
    del left
    taken_up = HotTuples(codec, 20, 60.0, arrays=MappedArrays(tmp_path))
    taken_up.check()
    assert held(taken_up, codec, [5, 6, 7, 8]) == before == [[5, 5], [6], [7, 7, 7], []]


@pytest.mark.parametrize("variable", [False, True])
def test_takes_what_it_says_it_takes(variable):
    codec = codec_for(variable)
    asked: list[int] = []

    def counted(name, count, dtype):
        array = in_memory(name, count, dtype)
        asked.append(array.nbytes)
        return array

    cache = HotTuples(codec, 1000, 50.0, arrays=counted)
    assert cache.nbytes == sum(asked)
    assert cache.nbytes <= 1000 * HotTuples.bytes_per_tuple(codec, 50.0) + HotTuples.fixed_bytes()


def test_candidates_are_keys_with_all_their_rows():
    page = 1000
    #            key 1: whole, two rows x three tuples    key 2: cut off    key 3: single    key 4: not whole
    keys = np.array([1, 1, 1, 1, 1, 1, 2, 3, 4])
    starts = np.array([10, 10, 10, 20, 20, 20, 40, 60, 80]) + page
    first, last, whole = FIRST, LAST, WHOLE
    flags = np.array(
        [first | whole] * 3 + [last | whole] * 3 + [first | whole, SINGLE, first | last], np.uint8
    )  # fmt: skip
    found = find_candidates(keys, starts, flags, page, 1)
    assert found.keys.tolist() == [1, 3]
    assert found.frequency.tolist() == [3, 1]
    assert found.bounds.tolist() == [0, 2, 3]
    assert (found.starts - page).tolist() == [10, 20, 60]
    assert find_candidates(keys, starts, flags, page, 2).keys.tolist() == [1]
