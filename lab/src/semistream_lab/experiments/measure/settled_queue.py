"""The queue of a join that serves its oldest tuple first, in the state that it would reach after hours.

Which tuples wait then depends only on keys and page numbers: the join reads the partition of the oldest tuple, all
tuples that wait for it leave, and the same number enters. This module simulates these rules for some laps of the queue,
without rows or pages, and puts the tuples that wait at the end into the join.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Ints
from semistream.core.compiled import kernel
from semistream.joins.families.front_stage import FrontStage
from semistream.joins.families.oldest_first import OldestFirstJoin
from semistream.joins.families.parallel_front import ParallelFrontStage
from semistream.joins.interface.join import Join
from semistream.joins.op_cachejoin import TwoBufferJoin
from semistream.joins.x_hybridjoin import XHybridJoin
from semistream.relation.rows.row_codec import RowCodec
from semistream.workloads.keys.key_source import ZipfKeys
from semistream.workloads.keys.zipf import ZipfLaw
from semistream_lab.experiments.measure.both_sides import Sides, stream_schema
from semistream_lab.experiments.measure.settled_cache import TailKeys

__all__ = ["fill_queue", "newest_number", "oldest_first", "oldest_number", "queue_of"]

Units = NDArray[np.int32]

_BATCH = 1 << 18  # keys per step of the simulation
_LAPS = 4  # laps of the queue to simulate
_ALL = 1 << 40  # no limit
_TAIL, _HEAD, _WAITING, _TURNS, _ROOM = range(5)  # fields of the state


def oldest_first(join: Join) -> OldestFirstJoin | None:
    """Return the join, or the one behind its front stage, if it serves the oldest tuple first."""
    inner = join.inner if isinstance(join, FrontStage) else join
    return inner if isinstance(inner, OldestFirstJoin) else None


def queue_of(join: Join) -> OldestFirstJoin | None:
    """Return the join, or the one behind its front stage, if its queue can be simulated: it reads one partition."""
    inner = oldest_first(join)
    if inner is None:
        return None
    view = inner.view()
    if isinstance(inner, XHybridJoin) and (view.pinned_for_good is None or isinstance(join, FrontStage)):
        return None  # it is not known yet which pages are pinned
    return inner if view.disk_pages == view.partition_pages else None


def oldest_number(inner: OldestFirstJoin) -> int:
    """Return the number of the tuple that has waited longest."""
    return _numbers(inner)[0]


def newest_number(inner: OldestFirstJoin) -> int:
    """Return the number of the tuple that arrived last."""
    return _numbers(inner)[1]


def _numbers(inner: OldestFirstJoin) -> tuple[int, int]:
    oldest, newest = inner.table.ends().column("number").to_pylist() or (0, 0)
    return int(oldest), int(newest)


def fill_queue(join: Join, sides: Sides) -> int:
    """Fill the queue of the join with the tuples that would wait after hours.

    ``sides`` is the stream without the keys that the join's cache answers. Returns the number of tuples; 0 if the join
    has no such queue.
    """
    inner = queue_of(join)
    if inner is None or not sides.relation.unique:
        return 0
    if isinstance(inner, XHybridJoin) and sides.workload.shape != "noperm":
        return 0
    keys = _waiting_keys(join, inner, sides)
    schema = stream_schema(sides.workload.stream_bytes)
    for begin in range(0, keys.size, _BATCH):
        waiting = join if isinstance(join, FrontStage) else inner
        waiting.let_wait(sides.batch_of(keys[begin : begin + _BATCH], begin - keys.size, schema))
    return int(keys.size)


def _waiting_keys(join: Join, inner: OldestFirstJoin, sides: Sides) -> Ints:
    """Return the keys of the waiting tuples, the oldest first."""
    view = inner.view()
    both, width = isinstance(inner, TwoBufferJoin), view.buffer_pages
    capacity = inner.table.capacity
    held = 2 * capacity + _BATCH
    keys, units = np.empty(held, np.int64), np.empty(held, np.int32)
    places = -(-sides.relation.page_count // width)
    waiting, cleared = np.zeros(places, np.int64), np.full(places, -1, np.int64)
    state = np.array([0, 0, 0, 0, capacity], np.int64)
    a_page = int(np.count_nonzero(sides.relation.locate(np.arange(min(held, 1 << 14))).pages == 0))
    source, stay = sides.keys, 1.0
    if view.pinned_for_good and isinstance(source, ZipfKeys):
        if isinstance(inner, XHybridJoin) and inner.scans_pinned:  # tuples that they answer wait one iteration
            stay = 1.0 - ZipfLaw(source.size, source.exponent).share(view.pinned_for_good * a_page)
        source = TailKeys(source, view.pinned_for_good * a_page)
    start, laps, newest = 0, 0, 0
    while laps < _LAPS:
        some = source.keys(start, _BATCH)
        start += _BATCH
        if state[_TAIL] + some.size > held:
            newest = _compact(keys, units, cleared, state, newest)
        _play(keys, units, waiting, cleared, state, some, (some // (a_page * width)).astype(np.int32), capacity, both,
              _entering(join, sides), stay)  # fmt: skip
        if state[_HEAD] >= newest and state[_WAITING] + some.size >= capacity:
            laps, newest = laps + 1, int(state[_TAIL])
    _compact(keys, units, cleared, state, 0)
    return keys[: state[_TAIL]].copy()


def _entering(join: Join, sides: Sides) -> int:
    """Return how many tuples can enter per iteration: with parallel phases, those in the buffer between; else all."""
    if not isinstance(join, ParallelFrontStage):
        return _ALL
    row = RowCodec(stream_schema(sides.workload.stream_bytes)).stride
    return max(1, join.view().parts["intermediate buffer"] // row)


@kernel
def _compact(keys: Ints, units: Units, cleared: Ints, state: Ints, mark: int) -> int:
    """Move the waiting tuples to the beginning; return the new position of the first one at or after ``mark``."""
    count, marked = 0, 0
    for i in range(state[_HEAD], state[_TAIL]):
        if i == mark:
            marked = count
        if i > cleared[units[i]]:
            keys[count], units[count] = keys[i], units[i]
            count += 1
    if mark >= state[_TAIL]:
        marked = count
    cleared[:] = -1
    state[_HEAD], state[_TAIL] = 0, count
    return marked


@kernel
def _play(
    keys: Ints, units: Units, waiting: Ints, cleared: Ints, state: Ints, some: Ints, at: Units, capacity: int,
    both: bool, most: int, stay: float,
) -> None:  # fmt: skip
    """Add tuples while there is room, and run iterations while there is none, until all tuples have entered."""
    head, tail, held, room = state[_HEAD], state[_TAIL], state[_WAITING], state[_ROOM]
    i = 0
    while i < some.size:
        count = min(room, some.size - i, capacity - held)
        for _ in range(count):
            keys[tail], units[tail] = some[i], at[i]
            waiting[at[i]] += 1
            tail += 1
            i += 1
        held += count
        room -= count
        if i == some.size and room > 0 and held < capacity:
            break
        while head <= cleared[units[head]]:
            head += 1
        unit = units[head]
        held -= waiting[unit]
        waiting[unit] = 0
        cleared[unit] = tail - 1
        if both and held > 0:
            last = tail - 1
            while last <= cleared[units[last]]:
                last -= 1
            unit = units[last]
            held -= waiting[unit]
            waiting[unit] = 0
            cleared[unit] = tail - 1
        state[_TURNS] += 1
        room = min(most, max(1, int(stay * (capacity - held))))
    state[_HEAD], state[_TAIL], state[_WAITING], state[_ROOM] = head, tail, held, room
