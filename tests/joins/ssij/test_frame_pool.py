"""Frames that logs, pages and the rest of the budget share, against lists: each frame has one owner at any time."""

from __future__ import annotations

import numpy as np
import pytest

from semistream.core.arrays import Slots
from semistream.joins.ssij.frame_pool import BYTES, COUNT, FREE, FRONT, OFFSET, FrameLog, FramePool, reserve, walk

FRAME = 128


class Model:
    """Logs as lists of frames, a frame as the list of its records: (size, number)."""

    def __init__(self, frames: int, logs: int) -> None:
        self.free = self.limit = frames
        self.lent = 0
        self.logs: list[list[list[tuple[int, int]]]] = [[] for _ in range(logs)]

    @property
    def logged(self) -> int:
        return sum(map(len, self.logs))

    @property
    def left(self) -> int:
        return min(self.free, self.limit - self.logged)

    def append(self, log: int, size: int, number: int, spare: int) -> bool:
        frames = self.logs[log]
        if not frames or sum(used for used, _ in frames[-1]) + size > FRAME:
            if self.left <= spare:
                return False
            self.free -= 1
            frames.append([])
        frames[-1].append((size, number))
        return True


class Pages:
    """Takes frames as the page cache does, from the same stack."""

    def __init__(self, pool: FramePool) -> None:
        self.pool = pool
        self.frames: list[int] = []

    def take(self) -> None:
        state = self.pool.arrays.state
        state[FREE] -= 1
        self.frames.append(int(self.pool.arrays.free[state[FREE]]))
        self.pool.frames[self.frames[-1]] = 0xAA

    def give(self, at: int) -> None:
        state = self.pool.arrays.state
        frame = self.frames.pop(at)
        assert (self.pool.frames[frame] == 0xAA).all(), "somebody wrote into the frame of a page"
        self.pool.arrays.free[state[FREE]] = frame
        state[FREE] += 1

    def held(self) -> Slots:
        return np.array(self.frames, np.int32)


def put(log: FrameLog, size: int, number: int, spare: int) -> bool:
    pool = log.pool.arrays
    at = int(reserve(pool.free, pool.after, pool.used, pool.state, log.state, size, spare))
    if at < 0:
        return False
    pool.words[at : at + size // 8] = number
    pool.words[at] = size
    return True


def contents(log: FrameLog) -> list[list[tuple[int, int]]]:
    """Walk a log; return its records, those of a frame together."""
    pool = log.pool.arrays
    found: dict[int, list[tuple[int, int]]] = {}
    frame, offset = (int(log.state[FRONT]), int(log.state[OFFSET])) if len(log) else (-1, 0)
    while True:
        frame, offset = map(int, walk(pool.after, pool.used, frame, offset))
        if frame < 0:
            break
        at = (frame * int(pool.state[BYTES]) + offset) // 8
        size = int(pool.words[at])
        number = set(pool.words[at + 1 : at + size // 8].tolist())
        assert len(number) == 1, "a record was written over"
        found.setdefault(frame, []).append((size, number.pop()))
        offset += size
    assert list(found) == log.frames().tolist()
    return list(found.values())


@pytest.mark.parametrize("seed", range(12))
def test_a_pool_does_what_lists_do(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 14))
    pool = FramePool(np.zeros((count, FRAME), np.uint8))
    logs = [FrameLog(pool) for _ in range(3)]
    model, pages = Model(count, len(logs)), Pages(pool)
    for number in range(250):
        action, log = random.integers(0, 12), int(random.integers(0, len(logs)))
        if action < 7:
            size, spare = int(random.integers(2, FRAME // 8 + 1)) * 8, int(random.choice([0, 0, 1, 3]))
            assert put(logs[log], size, number, spare) == model.append(log, size, number, spare)
        elif action == 7:
            logs[log].clear()
            model.free += len(model.logs[log])
            model.logs[log] = []
        elif action == 8 and model.free:
            pages.take()
            model.free -= 1
        elif action == 9 and pages.frames:
            pages.give(int(random.integers(0, len(pages.frames))))
            model.free += 1
        elif action == 10:
            lent = int(random.integers(0, model.free + 1))
            pool.lend(lent)
            model.free, model.lent = model.free - lent, model.lent + lent
            back = int(random.integers(0, model.lent + 1))
            pool.take_back(back)
            model.free, model.lent = model.free + back, model.lent - back
        elif action == 11:
            model.limit = int(random.integers(0, count + 1))
            pool.limit_logs(model.limit)
        pool.check(logs, pages.held())
        assert [contents(log) for log in logs] == model.logs
        assert [len(log) for log in logs] == [sum(map(len, frames)) for frames in model.logs]
        assert (pool.free, pool.logged, pool.lent) == (model.free, model.logged, model.lent)
        assert pool.left_for_logs == model.left
        assert pool.nbytes == (count - model.lent) * FRAME + count * FramePool.bytes_per_frame


def test_a_frame_with_two_owners_or_none_is_noticed() -> None:
    pool = FramePool(np.zeros((4, FRAME), np.uint8))
    log, nobody = FrameLog(pool), np.empty(0, np.int32)
    assert put(log, FRAME, 1, spare=0)
    pool.check([log], nobody)
    for others in (log.frames(), pool.arrays.free[:1].copy()):
        with pytest.raises(AssertionError, match="5 frames accounted for of 4"):
            pool.check([log], others)
    with pytest.raises(AssertionError, match="3 frames accounted for of 4"):
        pool.check([], nobody)


def test_no_more_frames_are_lent_than_are_free() -> None:
    pool = FramePool(np.zeros((4, FRAME), np.uint8))
    log = FrameLog(pool)
    assert put(log, FRAME, 1, spare=0)
    with pytest.raises(AssertionError, match="4 frames requested, 3 are free"):
        pool.lend(4)
    assert int(log.state[COUNT]) == len(log) == 1
