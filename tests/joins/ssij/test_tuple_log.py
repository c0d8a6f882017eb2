"""Tuples in frames against a list, through every way they can leave; and frames that change hands."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream.joins.ssij.frame_pool import FrameLog, FramePool
from semistream.joins.ssij.tuple_log import TupleLog, TupleShape
from semistream.relation.devices.file_device import FileDevice
from semistream.relation.rows.row_codec import RowCodec

FRAME = 256
FIXED = pa.schema({"n": pa.int64()})
VARIABLE = pa.schema({"n": pa.int64(), "note": pa.string()})


def make(frames: int, schema: pa.Schema, *, timed: bool = False, ranged: bool = False) -> TupleLog:
    pool = FramePool(np.zeros((frames, FRAME), np.uint8))
    return TupleLog(pool, TupleShape(RowCodec(schema), ranged=ranged, timed=timed))


def put(log: TupleLog, first: int, dues: list[float], sizes: list[int], spare: int = 0) -> int:
    """Append tuples numbered from ``first`` on; return how many went in."""
    numbers = np.arange(first, first + len(dues))
    columns = {"n": numbers}
    if log.shape.codec.variable:
        columns["note"] = pa.array(["x" * size for size in sizes])
    rows = log.shape.codec.encode(pa.record_batch(columns, schema=log.shape.codec.schema))
    timed = np.array(dues, np.float64) if log.shape.timed else None
    highs = numbers * 2 if log.shape.ranged else None
    return log.append(numbers, highs, timed, rows, spare)


def numbers_at(log: TupleLog, addresses: np.ndarray) -> list[int]:
    found = log.shape.codec.decode(log.pool.arrays.flat, addresses * 8 + log.shape.row_at)
    keys = log.pool.arrays.words[addresses + 1].tolist()
    assert keys == found.column("n").to_pylist(), "key and row belong to different tuples"
    if log.shape.ranged:
        assert log.pool.arrays.words[addresses + 2].tolist() == [2 * key for key in keys]
    return keys


@given(st.data(), st.booleans(), st.booleans(), st.booleans())
def test_a_log_does_what_a_list_does(data: st.DataObject, variable: bool, timed: bool, ranged: bool) -> None:
    log = make(data.draw(st.integers(1, 8)), VARIABLE if variable else FIXED, timed=timed, ranged=ranged)
    model: list[tuple[int, float]] = []
    following = 0
    due = st.floats(0, 10) | st.just(np.inf)
    for _ in range(data.draw(st.integers(1, 8))):
        dues = data.draw(st.lists(due, max_size=20))
        sizes = data.draw(st.lists(st.integers(0, 100), min_size=len(dues), max_size=len(dues)))
        count = put(log, following, dues, sizes)
        model += [(following + i, dues[i]) for i in range(count)]
        following += len(dues)
        assert count == len(dues) or log.pool.free == 0, "a tuple was refused although there was a frame"
        log.check()
        most = data.draw(st.integers(0, 25))
        if timed and data.draw(st.booleans()):
            taken = numbers_at(log, log.take_most_urgent(most))
            urgent = sorted(due for _, due in model)[:most]
            assert sorted(dict(model)[number] for number in taken) == urgent
            log.drop_taken()
            model = [(number, due) for number, due in model if number not in taken]
        else:
            assert numbers_at(log, log.front(most)) == [number for number, _ in model[:most]]
            log.drop_front(min(most, len(model)))
            model = model[most:]
        log.check()
        assert len(log) == len(model)
        assert numbers_at(log, log.front(1000)) == [number for number, _ in model]
        if timed:
            assert log.due_bounds()[0] == min((due for _, due in model), default=np.inf)
    log.clear()
    log.pool.check([log], np.empty(0, np.int32))
    assert log.pool.free == log.pool.count


def test_spare_frames_are_left_to_others() -> None:
    log = make(4, FIXED)
    other = FrameLog(log.pool)
    count = put(log, 0, [0.0] * 100, [], spare=2)
    assert 0 < count < 100
    assert log.pool.free == 2
    assert put(log, count, [0.0] * 100, [], spare=0) > 0
    assert log.pool.free == 0
    log.pool.check([log, other], np.empty(0, np.int32))


def test_a_limit_for_logs_leaves_frames_to_pages() -> None:
    pool = FramePool(np.zeros((6, FRAME), np.uint8), log_limit=2)
    log = TupleLog(pool, TupleShape(RowCodec(FIXED), ranged=False, timed=False))
    put(log, 0, [0.0] * 1000, [])
    assert (pool.logged, pool.free, pool.left_for_logs) == (2, 4, 0)


def test_lent_frames_are_out_of_use_until_they_come_back() -> None:
    log = make(5, FIXED)
    pool = log.pool
    before = pool.nbytes
    pool.lend(3)
    assert (pool.free, pool.lent, before - pool.nbytes) == (2, 3, 3 * FRAME)
    put(log, 0, [0.0] * 1000, [])
    pool.check([log], np.empty(0, np.int32))
    pool.take_back(3)
    assert pool.free == 3
    assert put(log, len(log), [0.0] * 1000, []) > 0
    pool.check([log], np.empty(0, np.int32))


def test_lent_frames_leave_resident_memory(tmp_path: pytest.TempPathFactory) -> None:
    frames = FileDevice.allocate.__get__(_Sized(), _Sized)(2048)  # 16 MiB, as a device allocates
    frames[:] = 1
    pool = FramePool(frames)
    before = _resident()
    pool.lend(1536)
    assert before - _resident() > 8 << 20
    assert frames[pool.arrays.free[: pool.free]].all(), "frames that stayed were dropped"
    pool.take_back(1536)
    frames[:] = 2  # usable as before


class _Sized:
    frame_bytes = 8192


def _resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096
