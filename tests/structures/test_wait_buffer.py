"""The wait buffer against lists, every invariant checked after every action."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from semistream.relation.rows.row_codec import RowCodec
from semistream.structures.wait_buffer import WaitBuffer

PARTITIONS = 5
PLACES = PARTITIONS + 2
FIXED = pa.schema({"number": pa.int64(), "value": pa.float64()})
VARYING = pa.schema({"number": pa.int64(), "value": pa.string()})
places = st.integers(0, PLACES - 1)
anywhere = st.lists(places, max_size=PLACES, unique=True)


@dataclass(frozen=True)
class Waiting:
    key: int
    number: int
    value: object
    came: int
    """Tuples that had come before it."""
    matched: bool = False


class BufferMachine(RuleBasedStateMachine):
    """`model` is who waits in each place, those who were put there last at the end."""

    @initialize(capacity=st.integers(1, 20), ripe=st.integers(1, 4), varying=st.booleans())
    def make(self, capacity: int, ripe: int, varying: bool) -> None:
        self.codec = RowCodec(VARYING if varying else FIXED)
        self.buffer = WaitBuffer(self.codec, capacity, PARTITIONS, ripe, 24.0 if varying else 0.0)
        self.varying, self.ripe = varying, ripe
        self.model: list[list[Waiting]] = [[] for _ in range(PLACES)]
        self.come = self.longest = self.number = 0
        reserved = WaitBuffer.fixed_bytes(PARTITIONS) + capacity * WaitBuffer.bytes_per_tuple(
            self.codec, 24.0 if varying else 0.0
        )
        assert self.buffer.nbytes <= reserved

    @rule(arriving=st.lists(st.tuples(st.integers(-3, 3), places, st.integers(0, 60)), max_size=12))
    def insert(self, arriving: list[tuple[int, int, int]]) -> None:
        numbers = list(range(self.number, self.number + len(arriving)))
        values = [("v" * size if self.varying else float(size)) for _, _, size in arriving]
        batch = pa.record_batch([numbers, values], schema=self.codec.schema)
        keys, where = (np.array([one[column] for one in arriving], np.int64) for column in (0, 1))
        room = self.buffer.free
        taken = self.buffer.insert(keys, where, batch)
        assert taken <= min(len(arriving), room)
        assert self.varying or taken == min(len(arriving), room)
        for (key, place, _), number, value in zip(arriving[:taken], numbers, values, strict=False):
            self.model[place].append(Waiting(key, number, value, self.come))
            self.come += 1
        self.number += len(arriving)

    @rule(tuples=st.integers(0, 5))
    def others_pass_by(self, tuples: int) -> None:
        self.buffer.pass_by(tuples)
        self.come += tuples

    @rule(chosen=anywhere, marked=st.integers(0, 7), kept=st.lists(places, max_size=6))
    def serve(self, chosen: list[int], marked: int, kept: list[int]) -> None:
        """Take who waits in some places; some find a partner; some go on waiting elsewhere, the rest leaves."""
        slots, owner = self.buffer.take(np.array(chosen, np.int64))
        taken = [one for place in chosen for one in reversed(self.model[place])]
        assert [chosen[i] for i in owner] == [place for place in chosen for _ in self.model[place]]
        for place in chosen:
            self.model[place] = []
        assert self.buffer.keys_of(slots).tolist() == [one.key for one in taken]
        assert self.buffer.matched(slots).tolist() == [one.matched for one in taken]
        rows = self.buffer.rows(slots)
        assert list(zip(*rows.to_pydict().values(), strict=True)) == [(one.number, one.value) for one in taken]
        self.buffer.mark(slots[:marked])
        taken = [replace(one, matched=one.matched or i < marked) for i, one in enumerate(taken)]
        kept = kept[: len(taken)]
        self.buffer.put_off(slots[: len(kept)], np.array(kept, np.int64))
        for one, place in zip(taken, kept, strict=False):
            self.model[place].append(one)
        self.buffer.release(slots[len(kept) :])
        self.longest = max([self.longest, *(self.come - 1 - one.came for one in taken[len(kept) :])])

    @rule()
    def take_all(self) -> None:
        slots = self.buffer.take_all()
        everyone = [one for place in self.model for one in place]
        assert sorted(self.buffer.rows(slots)["number"].to_pylist()) == sorted(one.number for one in everyone)
        self.buffer.release(slots)
        self.longest = max([self.longest, *(self.come - 1 - one.came for one in everyone)])
        self.model = [[] for _ in range(PLACES)]

    @rule(capacity=st.integers(1, 30))
    def resize(self, capacity: int) -> None:
        other = self.buffer.resized(capacity)
        self.buffer.check()
        if other is None:
            assert self.varying or len(self.buffer) > capacity, "there was room"
        else:
            assert len(other) == len(self.buffer) <= other.capacity == capacity
            self.buffer = other

    @rule(most=st.integers(1, PARTITIONS + 1), least=st.integers(1, 4))
    def fullest(self, most: int, least: int) -> None:
        count = [len(self.model[place]) for place in range(PARTITIONS)]
        able = sorted((place for place in range(PARTITIONS) if count[place] >= least), key=lambda place: -count[place])
        assert self.buffer.fullest(most, least).tolist() == sorted(able[:most])

    @rule(begin=st.integers(0, PARTITIONS), most=st.integers(1, PARTITIONS + 1))
    def next_in_order(self, begin: int, most: int) -> None:
        wanted = [place for place in range(PARTITIONS) if self.model[place]]
        after = [place for place in wanted if place >= begin]
        assert self.buffer.next_in_order(begin, most).tolist() == (after or wanted)[:most]

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "buffer"):
            return
        self.buffer.check()
        everyone = [one for place in self.model for one in place]
        assert len(self.buffer) == len(everyone)
        assert self.buffer.free == self.buffer.capacity - len(everyone)
        assert self.buffer.ripe_partitions == sum(len(place) >= self.ripe for place in self.model[:PARTITIONS])
        assert self.buffer.longest_wait == max([self.longest, *(self.come - 1 - one.came for one in everyone)])


BufferMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestWaitBuffer = BufferMachine.TestCase


def test_a_row_that_an_empty_buffer_refuses_is_longer_than_its_largest() -> None:
    codec = RowCodec(VARYING)
    buffer = WaitBuffer(codec, 4, PARTITIONS, 2, 24.0)
    for size in range(0, 2 * buffer.largest_row, 7):
        batch = pa.record_batch([[1], ["v" * size]], schema=VARYING)
        fits = int(codec.encode(batch).lengths[0]) <= buffer.largest_row
        assert buffer.insert(np.array([1]), np.array([0]), batch) == fits, size
        buffer.release(buffer.take_all())
        buffer.check()
