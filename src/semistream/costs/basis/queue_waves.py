"""The queue of an oldest-first join, played unit by unit instead of tuple by tuple.

`queue_steady_state` takes the wait ``τ`` to be the same for all units. It is not where one unit is wanted by much of
the stream, as the first partition of an R stored by frequency is: its read empties most of the queue at once, as many
tuples enter together, and until these are the oldest ones everything else is read for few. So there
are waves, and they cost up to a quarter of the rate. They follow from three rules::

    the unit read next      is the one with the smallest first position f
    it serves               1 + q·(A - f) tuples, A being the position of the newest tuple
    then                    as many enter: A grows by them; its own next first one comes at A + (1/q on average)

which are played here over some laps of the queue, for some hundreds of units: the most popular ones by themselves,
each of the others for several like it. Time is counted in tuples admitted. Nothing is random: the times until a unit
is wanted again are the quantiles of their law in a fixed order, so a model gives the same rate every time.
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
"""Parts of a wait that units are sorted into."""
_LEAST_LAPS, _READS = 8, 4000
"""Few units go round more often, until so many reads were seen."""
_MOST_READS = 64
"""Times that a unit is read at most, on average over all units and for each lap: where more would be needed, one unit
takes nearly all of the stream, and some reads of it show as much as all."""
_SINGLE = 256
_THINNING = 0.01
_REPRESENTATIVES = 4096
_PARTS = 256
"""Units that one stands for want no larger part of the queue than this, if each wants a tuple."""
_NEVER = 1e-15
_LEAST_TURNS, _DRAWS = 256, 4096
_STEPS = (0.6180339887498949, 0.7548776662466927, 0.5698402909980532)
"""Multiples of these, less their whole parts, fill the interval from 0 to 1 evenly."""


def play_laps(
    units: Units, waiting: float, together: float, most: float, wait: float, stay: float = 1.0
) -> tuple[float, float, float]:  # fmt: skip
    """Return the tuples that a read serves, how long a unit waits for it, and how much of a unit there is to read.

    Parameters
    ----------
    units
        What is read.
    waiting
        Tuples that wait when the queue is full.
    together
        Units read in a turn, before others enter.
    most
        Tuples that can enter in a turn.
    wait
        About how long a unit waits.
    stay
        Share of those that enter in a turn that are still there when it reads.
    """
    popularity, weight, part = _representatives(units, waiting / _PARTS)
    return _play(popularity, weight, part, waiting, wait, together, most, stay)


def _representatives(units: Units, most: float) -> tuple[Floats, Floats, Floats]:
    """Return some hundreds of units, how many each of them stands for, and how much of a unit each is.

    They stand for ``most`` at most, if that is a few thousands.
    """
    order = np.argsort(-units.popularity, kind="stable")
    popularity, count = units.popularity[order], units.count[order]
    before = np.append(0.0, np.cumsum(count))
    wanted = np.append(0.0, np.cumsum(count * popularity))
    total = before[-1]
    widest = max(1.0, most, total / _REPRESENTATIVES)
    edges = np.arange(min(_SINGLE, math.ceil(total)), dtype=np.float64)
    if total > _SINGLE:
        # each stands for one more per cent of those before it
        steps = math.ceil(math.log1p((total - _SINGLE) * _THINNING) / math.log1p(_THINNING))
        widths = np.minimum((1.0 + _THINNING) ** np.arange(max(steps, math.ceil(total / widest))), widest)
        later = _SINGLE + np.append(0.0, np.cumsum(widths))
        edges = np.append(edges, later[later < total])
    edges = np.append(edges, total)
    weight = np.diff(edges)
    shares = np.diff(np.interp(edges, before, wanted))
    # part of a unit, as the last of R may be, is a unit that is wanted less
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
    first_of = np.full(ring, -1, np.int32)  # of the units in a cell
    next_of = np.full(size, -1, np.int32)
    first = np.empty(size)
    quantile = np.empty(size)
    newest = wait
    held = 0.0
    for u in range(size):
        # as a steady queue without waves would be
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
    """Return how many places of a table are empty when a turn reads, on average over reads.

    Turns serve more or fewer tuples, and between two of them no more can enter than the buffer before the table holds,
    ``most``; less, if the next ``piece`` of the stream is not worth cutting. So places that one long turn has emptied
    are filled over several, and meanwhile reads serve fewer. Turns are played with units drawn as they are read; always
    the same ones.
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
        entering = min(held, empty)  # what the buffer has, as far as there is room
        held -= entering
        empty -= entering
        if turn >= turns // 4:
            total += empty
        served = 0.0
        for _ in range(together):
            served += size[min(int(np.searchsorted(drawn, np.random.random())), size.size - 1)]  # noqa: NPY002
        served += math.sqrt(served) * np.random.normal()  # noqa: NPY002, from one time to another
        empty = min(empty + max(1.0, served * (1.0 - empty / capacity)), capacity)
        entering = min(held, empty)  # and what it still has
        held -= entering
        empty -= entering
        while left <= most - held:  # a piece that fits goes in as a whole
            held += left
            left = piece
        if 2.0 * held <= most:  # part of one, unless the buffer is more than half full
            left -= most - held
            held = most
    return total / (turns - turns // 4)
