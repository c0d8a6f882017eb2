"""The queue of an oldest-first join, simulated unit by unit instead of tuple by tuple.

`queue_steady_state` assumes that the wait ``τ`` is the same for all units. That is wrong if much of the stream needs
one unit, such as the first partition of an R that is stored by frequency. Reading it empties most of the queue, and the
same number of tuples enters together. Until these become the oldest, every other read serves few tuples. The queue
moves in waves, which cost up to a quarter of the rate. They follow from three rules::

    the unit read next      is the one with the smallest first position f
    it serves               1 + q·(A - f) tuples, A being the position of the newest tuple
    then                    as many enter, and A grows by them; the unit's next first tuple is at A + (1/q on average)

The rules are simulated over several laps of the queue, for some hundred units: the most popular ones individually, each
of the others as a representative of several similar ones. Time is counted in admitted tuples. Nothing is random: the
times until a unit is needed again are quantiles of their distribution in a fixed order, so the model always returns the
same rate.
"""

from __future__ import annotations

import math

import numpy as np

from semistream.core.arrays import Floats
from semistream.core.compiled import kernel
from semistream.costs.basis.popularity import Units
from semistream.costs.basis.queue_steady_state import SteadyState

__all__ = ["empty_places", "play_laps"]


_CELLS = 1024
"""Number of parts of a wait into which units are sorted."""
_LEAST_LAPS, _READS = 8, 4000
"""Minimum laps, and minimum reads: if there are few units, more laps are simulated until the reads are reached."""
_MOST_READS = 64
"""Maximum average number of reads per unit and lap. More are needed only if one unit receives nearly the whole stream;
then a sample of its reads is sufficient."""
_SINGLE = 256
_THINNING = 0.01
_REPRESENTATIVES = 4096
_PARTS = 256
"""The units of one representative, with one waiting tuple each, hold at most 1/256 of the queue."""
_NEVER = 1e-15
_LEAST_TURNS, _DRAWS = 256, 4096
_STEPS = (0.6180339887498949, 0.7548776662466927, 0.5698402909980532)
"""The fractional parts of multiples of these numbers fill the interval from 0 to 1 evenly."""


def play_laps(
    units: Units, waiting: float, together: float, most: float, wait: float, stay: float = 1.0
) -> tuple[float, float, float]:  # fmt: skip
    """Return the tuples that a read serves, how long a unit waits for its read, and the average size of a unit.

    Parameters
    ----------
    units
        What is read.
    waiting
        Tuples that wait when the queue is full.
    together
        Units read per iteration, before other tuples enter.
    most
        Tuples that can enter per iteration.
    wait
        Approximate wait of a unit.
    stay
        Share of the tuples entering in an iteration that are still in the queue when it reads.
    """
    popularity, weight, part = _representatives(units, waiting / _PARTS)
    return _play(popularity, weight, part, waiting, wait, together, most, stay)


def _representatives(units: Units, most: float) -> tuple[Floats, Floats, Floats]:
    """Return some hundred units, how many units each represents, and the size of each.

    Each represents at most ``most`` units, unless that would take more than a few thousand representatives.
    """
    order = np.argsort(-units.popularity, kind="stable")
    popularity, count = units.popularity[order], units.count[order]
    before = np.append(0.0, np.cumsum(count))
    wanted = np.append(0.0, np.cumsum(count * popularity))
    total = before[-1]
    widest = max(1.0, most, total / _REPRESENTATIVES)
    edges = np.arange(min(_SINGLE, math.ceil(total)), dtype=np.float64)
    if total > _SINGLE:
        # each represents one per cent more than the units before it
        steps = math.ceil(math.log1p((total - _SINGLE) * _THINNING) / math.log1p(_THINNING))
        widths = np.minimum((1.0 + _THINNING) ** np.arange(max(steps, math.ceil(total / widest))), widest)
        later = _SINGLE + np.append(0.0, np.cumsum(widths))
        edges = np.append(edges, later[later < total])
    edges = np.append(edges, total)
    weight = np.diff(edges)
    shares = np.diff(np.interp(edges, before, wanted))
    # a partial unit, such as the last one of R, is a unit that is needed less often
    part = np.minimum(weight, 1.0)
    weight = np.maximum(weight, 1.0)
    return np.maximum(shares / weight, _NEVER), weight, part


@kernel
def _play(
    popularity: Floats, weight: Floats, part: Floats, waiting: float, wait: float, together: float, most: float,
    stay: float,
) -> tuple[float, float, float]:  # fmt: skip
    size = popularity.size
    laps = max(_LEAST_LAPS, _READS // size)
    ring = 8 * _CELLS
    cell = wait / _CELLS
    first_of = np.full(ring, -1, np.int32)  # first unit of each cell
    next_of = np.full(size, -1, np.int32)
    first = np.empty(size)
    quantile = np.empty(size)
    newest = wait
    held = 0.0
    for u in range(size):
        # start as a steady queue without waves
        z = popularity[u] * wait
        chance, place = u * _STEPS[0] % 1.0, (u * _STEPS[1] + 0.5) % 1.0
        quantile[u] = (u * _STEPS[2] + 0.25) % 1.0
        if chance < z / (1.0 + z):
            first[u] = newest - place * wait
            held += weight[u] * (1.0 + z * place)
        else:
            first[u] = newest - math.log(1.0 - place) / popularity[u]
        at = int(min(first[u] / cell, ring - 1.0))
        next_of[u] = first_of[at]
        first_of[at] = u
    lacking = waiting - held
    now, lap, end = 0, -1, 0.0
    tuples, reads, waits, parts, in_turn = 0.0, 0.0, 0.0, 0.0, 0.0
    left = _MOST_READS * laps * size
    while True:
        if now * cell >= end:
            lap += 1
            if lap == laps // 2:
                tuples, reads, waits, parts = 0.0, 0.0, 0.0, 0.0
            elif lap == laps // 2 + laps:
                return tuples / reads, waits / reads, parts / reads
            end = newest
        unsorted = first_of[now % ring]
        first_of[now % ring] = -1
        while unsorted >= 0:
            u, before_u = unsorted, -1
            link = unsorted
            while next_of[link] >= 0:
                if first[next_of[link]] < first[u]:
                    u, before_u = next_of[link], link
                link = next_of[link]
            if before_u >= 0:
                next_of[before_u] = next_of[u]
            else:
                unsorted = next_of[u]
            at = int(min(first[u] / cell, now + ring - 1.0))
            if at <= now:
                left -= 1
                if left < 0 and reads > 0.0:
                    return tuples / reads, waits / reads, parts / reads
                newest = max(newest, first[u])
                gap = newest - first[u]
                served = weight[u] * (1.0 + popularity[u] * gap)
                tuples += served
                reads += weight[u]
                waits += weight[u] * gap
                parts += weight[u] * part[u]
                lacking += served
                in_turn += weight[u]
                quantile[u] = (quantile[u] + _STEPS[0]) % 1.0
                first[u] = newest - math.log(1.0 - quantile[u]) / popularity[u]
                if in_turn >= together:
                    entering = max(0.0, min(stay * lacking, most * in_turn / together))
                    newest += entering
                    lacking -= entering
                    in_turn = 0.0
                at = int(min(first[u] / cell, now + ring - 1.0))
            if at <= now:
                next_of[u] = unsorted
                unsorted = u
            else:
                next_of[u] = first_of[at % ring]
                first_of[at % ring] = u
        now += 1


def empty_places(units: Units, full: SteadyState, capacity: float, most: float, piece: float) -> float:
    """Return how many slots of a table are empty when an iteration reads, on average over reads.

    Iterations serve different numbers of tuples. Between two of them at most ``most`` tuples can enter, the size of the
    buffer in front of the table; fewer if the next ``piece`` of the stream is not worth splitting. Slots that one long
    iteration emptied are therefore refilled over several, and in the meantime reads serve fewer tuples. Iterations are
    simulated with units drawn in proportion to their reads, with a fixed seed.
    """
    size = 1.0 + units.popularity * full.wait
    reads = units.count * units.popularity / size
    return float(
        _play_refilling(np.cumsum(reads) / reads.sum(), size, max(1, round(full.units)), capacity, most, piece)
    )


@kernel
def _play_refilling(drawn: Floats, size: Floats, together: int, capacity: float, most: float, piece: float) -> float:
    np.random.seed(7)  # noqa: NPY002, kernels have this one
    held, empty, total, left = most, 0.0, 0.0, piece
    turns = max(_LEAST_TURNS, _DRAWS // together)
    for turn in range(turns):
        entering = min(held, empty)  # from the buffer, as far as there is room
        held -= entering
        empty -= entering
        if turn >= turns // 4:
            total += empty
        served = 0.0
        for _ in range(together):
            served += size[min(int(np.searchsorted(drawn, np.random.random())), size.size - 1)]  # noqa: NPY002
        served += math.sqrt(served) * np.random.normal()  # noqa: NPY002, variation between iterations
        empty = min(empty + max(1.0, served * (1.0 - empty / capacity)), capacity)
        entering = min(held, empty)  # the rest of the buffer
        held -= entering
        empty -= entering
        while left <= most - held:  # a piece that fits enters as a whole
            held += left
            left = piece
        if 2.0 * held <= most:  # part of one, unless the buffer is more than half full
            left -= most - held
            held = most
    return total / (turns - turns // 4)
