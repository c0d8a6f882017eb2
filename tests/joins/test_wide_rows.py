"""Rows of any size: none is written past its place, none is refused for where it stands, and results stay small."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.core.errors import SemistreamError
from semistream.joins import find
from semistream.joins.ssij.frame_pool import FramePool
from semistream.joins.ssij.tuple_log import TupleLog, TupleShape
from semistream.relation.relation import Relation
from semistream.relation.rows.row_cells import RowLimitError
from semistream.relation.rows.row_codec import RowCodec, Rows
from semistream.relation.rows.row_sizes import batch_bytes
from semistream.structures.row_store import RowStore

ROWS = 300


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Relation:
    return Relation.build(
        pa.table({"id": range(5_000), "v": range(5_000)}), tmp_path_factory.mktemp("narrow") / "r", "id"
    )


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Relation:
    """R with 20 rows a key, of 5 KB each."""
    keys = np.arange(ROWS) // 20
    table = pa.table({"id": keys, "v": range(ROWS), "text": [f"{row:05d}" * 1000 for row in range(ROWS)]})
    return Relation.build(table, tmp_path_factory.mktemp("wide") / "r", "id", page_size="16KiB")


def lists(first: int, rows: int, items: int) -> pa.RecordBatch:
    tags = [[f"{row % 1000:03d}"] * items for row in range(first, first + rows)]
    ids = [row * 7 % 5_500 for row in range(first, first + rows)]
    return pa.record_batch({"id": ids, "tags": pa.array(tags, pa.list_(pa.string()))})


@pytest.mark.parametrize("algorithm", semistream.algorithms())
@pytest.mark.parametrize("items", [678, 681])
def test_lists_that_grow_when_encoded(algorithm: str, items: int, narrow: Relation) -> None:
    # a row of 4.8 KB is 8.2 KB encoded, as a page is
    join = semistream.create(algorithm, narrow, on="id", how="left", memory="1MB")
    rows = []
    for turn in range(60):
        for result in [*join.feed(lists(turn, 1, items)), *(join.drain() if turn % 30 == 29 else ())]:
            rows += result.to_pylist()
    join.check()
    assert len(rows) == 60
    for row in rows:
        assert row["v"] == (row["id"] if row["id"] < 5_000 else None)
        assert len(row["tags"]) == items
        assert len(set(row["tags"])) == 1


@pytest.mark.parametrize("size", [8_130, 8_148, 8_152, 8_153, 8_160, 8_176])
def test_ssij_with_rows_about_as_long_as_a_frame(size: int, narrow: Relation) -> None:
    join = semistream.create("ssij", narrow, on="id", how="left", memory="1MB")
    for row in range(60):
        text = f"{row:05d}" + "x" * (size - 5)
        batch = pa.record_batch({"id": [row * 7], "a": [text], "b": [""], "c": [""]})
        for result in [*join.feed(batch), *(join.drain() if row % 20 == 19 else ())]:
            for found in result.to_pylist():
                assert found["v"] == found["id"]
                assert found["a"] == f"{found['id'] // 7:05d}" + "x" * (size - 5)


def test_no_write_past_a_frame_whatever_the_caller_does() -> None:
    codec = RowCodec(pa.schema({"text": pa.string()}))
    log = TupleLog(FramePool(np.zeros((4, 512), np.uint8)), TupleShape(codec, ranged=False, timed=False))
    rows = codec.encode(pa.record_batch({"text": ["x" * 600]}))
    with pytest.raises(SemistreamError, match="does not fit into a frame"):
        log.append(np.zeros(1, np.int64), None, None, rows, 0)
    store = RowStore(codec, 4, 32.0)
    with pytest.raises(SemistreamError, match="do not fit"):
        store.put(np.zeros(1, np.int32), rows)
    with pytest.raises(SemistreamError, match="do not fit"):
        store.put(np.zeros(1, np.int32), Rows(rows.data, np.zeros(2, np.int64), np.full(2, 4)))


@pytest.mark.parametrize("algorithm", semistream.algorithms())
def test_long_rows_may_come_first(algorithm: str, narrow: Relation) -> None:
    schema = pa.schema({"id": pa.int64(), "text": pa.string()})
    memory = find(algorithm).minimum_memory(narrow, schema, on="id") + 2_000
    ids = [row * 11 % 5_000 for row in range(60)]
    texts = ["y" * (9_000 if row < 20 else 5) for row in range(60)]
    batch = pa.record_batch({"id": ids, "text": texts}, schema=schema)
    for batches in ([batch], [batch.slice(20), batch.slice(0, 20)]):
        join = find(algorithm)(narrow, on="id", memory=memory)
        found = Counter(
            (row["id"], len(row["text"]), row["v"]) for out in join.process(batches) for row in out.to_pylist()
        )
        join.check()
        assert found == Counter((key, len(text), key) for key, text in zip(ids, texts, strict=True))


@pytest.mark.parametrize("at", [0, 7])
def test_a_row_longer_than_all_memory_is_refused_by_its_size(at: int, narrow: Relation) -> None:
    texts = ["short"] * 10
    texts[at] = "z" * 3_000_000
    join = semistream.create("hybridjoin", narrow, on="id", memory="2MB")
    with pytest.raises(RowLimitError, match=r"3,000,0\d\d B.*2,000,000 B"):
        list(join.process([pa.record_batch({"id": range(10), "text": texts})]))


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("algorithm", semistream.algorithms())
def test_results_are_bounded_in_bytes(algorithm: str, how: str, wide: Relation) -> None:
    # each tuple of 8 KB meets 20 rows of 5 KB: together ten times the budget
    join = semistream.create(algorithm, wide, on="id", how=how, memory="1MB")
    keys = [row * 13 % 30 for row in range(120)]  # every other key is not in R
    texts = [f"{row:08d}" * 1000 for row in range(120)]
    stream = pa.record_batch({"id": keys, "s": range(120), "payload": texts})
    seen: Counter[tuple[int, int | None]] = Counter()
    for begin in range(0, 120, 60):
        for result in join.process([stream.slice(begin, 60)]):
            assert batch_bytes(result) <= join.budget.total / 12  # a 16th for it, but for one pair more
            for s, v, payload in zip(*(result.column(name).to_pylist() for name in ("s", "v", "payload")), strict=True):
                assert payload == texts[s]
                seen[s, v] += 1
        join.check()
    expected: Counter[tuple[int, int | None]] = Counter()
    for s, key in enumerate(keys):
        if key < 15:
            expected.update((s, key * 20 + row) for row in range(20))
        elif how == "left":
            expected[s, None] += 1
    assert seen == expected
    assert join.budget.peak <= join.budget.total


@pytest.mark.parametrize("algorithm", semistream.algorithms())
def test_results_that_arrow_types_cannot_hold_at_once_are_cut(algorithm: str, narrow: Relation) -> None:
    # a dictionary of 128 values, another one in each batch: a result of several batches has more
    join = semistream.create(algorithm, narrow, on="id", memory="4MB")
    kind = pa.dictionary(pa.int8(), pa.string())
    runs = pa.run_end_encoded(pa.int16(), pa.string())
    batches = []
    for number in range(5):
        names = pa.DictionaryArray.from_arrays(
            pa.array(np.arange(100) % 90, pa.int8()), [f"{number} {name}" for name in range(90)]
        )
        ends = pa.RunEndEncodedArray.from_arrays(pa.array([60, 100], pa.int16()), [f"run {number}", None])
        ids = np.arange(number * 100, number * 100 + 100)
        batches.append(pa.record_batch({"id": ids, "name": names.cast(kind), "run": ends.cast(runs)}))
    found = {row["id"]: row for result in join.process(batches) for row in result.to_pylist()}
    assert len(found) == 500
    for key, row in found.items():
        assert row["name"] == f"{key // 100} {key % 100 % 90}"
        assert row["run"] == (f"run {key // 100}" if key % 100 < 60 else None)
