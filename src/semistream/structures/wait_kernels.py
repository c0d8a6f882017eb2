"""Compiled loops of the wait buffer: lists of tuples by place, in flat arrays.

A tuple is inserted, put off or released in constant time. `everyone` and `longest_wait` scan all tuples; `fullest` and
`next_in_order` scan the counts of the places.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.core.compiled import Int, kernel

__all__ = [
    "CLOCK", "COUNT", "FREE", "HELD", "RIPE", "WaitArrays",
    "everyone", "fullest", "insert_waiting", "longest_wait", "next_in_order", "put_off", "release_slots",
    "take_waiting",
]  # fmt: skip

# Places in ``state``: first free slot, waiting tuples, slots not free, ripe partitions, tuples that have arrived.
FREE, COUNT, HELD, RIPE, CLOCK = 0, 1, 2, 3, 4


class WaitArrays(NamedTuple):
    """State of a wait buffer; see `wait_buffer` for the picture."""

    key: Ints
    next: Slots  # the next tuple in the same place; links free slots too
    came: NDArray[np.uint32]  # number of tuples that arrived before it, modulo 2^32
    matched: Bytes
    head: Slots  # first tuple of each place
    waiting: Slots  # tuples in each place
    state: Ints


@kernel
def _hook(t: WaitArrays, slot: Int, place: Int, ripe: int) -> None:
    t.next[slot] = t.head[place]
    t.head[place] = slot
    t.waiting[place] += 1
    if t.waiting[place] == ripe and place < t.head.size - 2:
        t.state[RIPE] += 1


@kernel
def insert_waiting(t: WaitArrays, keys: Ints, places: Ints, ripe: int) -> Slots:
    """Put new tuples into free slots and link them into their places; return the slots."""
    slots = np.empty(keys.size, np.int32)
    for i in range(keys.size):
        slot = np.int32(t.state[FREE])
        t.state[FREE] = t.next[slot]
        slots[i] = slot
        t.key[slot] = keys[i]
        t.came[slot] = np.uint32(t.state[CLOCK] + i)
        t.matched[slot] = 0
        _hook(t, slot, places[i], ripe)
    t.state[COUNT] += keys.size
    t.state[HELD] += keys.size
    t.state[CLOCK] += keys.size
    return slots


@kernel
def put_off(t: WaitArrays, slots: Slots, places: Ints, ripe: int) -> None:
    """Let tuples that were taken from one place wait in another."""
    for i in range(slots.size):
        _hook(t, slots[i], places[i], ripe)
    t.state[COUNT] += slots.size


@kernel
def take_waiting(t: WaitArrays, places: Ints, ripe: int) -> tuple[Slots, Ints]:
    """Unlink all tuples of some places; return their slots, and for each its place as an index into ``places``."""
    total = 0
    for i in range(places.size):
        total += t.waiting[places[i]]
    slots = np.empty(total, np.int32)
    owner = np.empty(total, np.int64)
    at = 0
    for i in range(places.size):
        place = places[i]
        if t.waiting[place] >= ripe and place < t.head.size - 2:
            t.state[RIPE] -= 1
        slot = t.head[place]
        while slot >= 0:
            slots[at] = slot
            owner[at] = i
            at += 1
            slot = t.next[slot]
        t.head[place] = -1
        t.waiting[place] = 0
    t.state[COUNT] -= total
    return slots, owner


@kernel
def everyone(t: WaitArrays) -> tuple[Slots, Ints]:
    """Return the slots of all tuples and their places; tuples of a place are in order of arrival."""
    slots = np.empty(t.state[COUNT], np.int32)
    places = np.empty(slots.size, np.int64)
    end = 0
    for place in range(t.head.size):
        end += t.waiting[place]
        slot, at = t.head[place], end
        while slot >= 0:
            at -= 1
            slots[at] = slot
            places[at] = place
            slot = t.next[slot]
    return slots, places


@kernel
def release_slots(t: WaitArrays, slots: Slots) -> Int:
    """Free slots; return the longest wait of these tuples, in tuples that arrived after them."""
    longest = np.int64(0)
    for i in range(slots.size):
        waited = np.int64(np.uint32(t.state[CLOCK] - 1 - np.int64(t.came[slots[i]])))
        longest = max(longest, waited)
        t.next[slots[i]] = t.state[FREE]
        t.state[FREE] = slots[i]
    t.state[HELD] -= slots.size
    return longest


@kernel
def longest_wait(t: WaitArrays) -> Int:
    """Return the longest wait so far of any waiting tuple, in tuples that arrived after it; scans all tuples."""
    longest = np.int64(0)
    for place in range(t.head.size):
        slot = t.head[place]
        while slot >= 0:
            longest = max(longest, np.int64(np.uint32(t.state[CLOCK] - 1 - np.int64(t.came[slot]))))
            slot = t.next[slot]
    return longest


@kernel
def fullest(count: Slots, most: int, least: int) -> Ints:
    """Return up to ``most`` places with the highest counts of at least ``least``, ascending by place."""
    levels = np.zeros(1025, np.int64)
    for place in range(count.size):
        levels[min(count[place], 1024)] += 1
    # Find the lowest count to choose from; places with exactly this count are chosen while there is room.
    level, above = 1024, 0
    while level > least and above + levels[level] <= most:
        above += levels[level]
        level -= 1
    chosen = np.empty(most, np.int64)
    room = most - above
    found = 0
    for place in range(count.size):
        here = min(count[place], 1024)
        if here > level or (here == level and here >= least and room > 0):
            if here == level:
                room -= 1
            chosen[found] = place
            found += 1
    return chosen[:found]


@kernel
def next_in_order(count: Slots, begin: int, most: int) -> Ints:
    """Return up to ``most`` places with waiting tuples from ``begin`` on, ascending; from 0 on if there are none."""
    chosen = np.empty(most, np.int64)
    found = 0
    for turn in range(2):
        for place in range(begin if turn == 0 else 0, count.size):
            if count[place] > 0:
                chosen[found] = place
                found += 1
                if found == most:
                    return chosen
        if found > 0:
            break
    return chosen[:found]
