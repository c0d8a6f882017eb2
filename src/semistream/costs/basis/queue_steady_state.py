"""The steady state of a join that serves its oldest tuple first: how many tuples each read answers.

The papers assume ``w = κ·h_S·d / R_t`` and fit ``κ`` (HYBRIDJOIN Eq. 2: 1.36 at exponent 1). Here it is derived.

Time is counted in admitted tuples. A unit of R (a page, or a partition of pages) is needed by a share ``q`` of them. If
no tuple waits for a unit, the first one arrives after ``1/q`` tuples on average. The unit is read when that tuple has
become the oldest of all, ``τ`` tuples later, and the read answers the ``1 + q·τ`` tuples that have arrived for it. In a
queue of many tuples ``τ`` is the same for all units, and follows from the fact that the queue is full::

    Σ_units  (share of the time with waiting tuples) · (tuples waiting then)  =  h_S
             z/(1+z)                                   1 + z/2                      with z = q·τ

(``z/2`` times `Units.filling`, if a cache before the join answers tuples of a unit that was just read.)

The units read per admitted tuple are ``Σ q/(1+z)``, so ``w = 1 / Σ q/(1+z)``. For a uniform stream and many
waiting tuples that is ``2·h_S·d/R_t``: the oldest unit has waited twice as long as the average one.

(The same reasoning gives the hit ratio of a cache with a time to live; ``τ`` is its characteristic time.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from semistream.core.arrays import Floats
from semistream.core.compiled import kernel
from semistream.costs.basis.popularity import Units

__all__ = ["SteadyState", "both_ends", "oldest_first", "root"]


@dataclass(frozen=True)
class SteadyState:
    """The work of an iteration once the queue is full."""

    wait: float
    """``τ``: tuples admitted between a unit's first tuple and its read."""
    served: float
    """``w``: tuples that the read of a unit answers."""
    units: float
    """Units read in an iteration."""
    runs: float
    """Seeks in an iteration; neighbours are read together."""
    part: float = 1.0
    """Average part of a unit that exists; the last unit of R may be short."""

    @property
    def tuples(self) -> float:
        """Tuples that leave, and enter, in an iteration."""
        return self.units * self.served


def oldest_first(units: Units, waiting: float, keys_a_turn: float, keys_a_unit: float) -> SteadyState:
    """Return the steady state of a queue of ``waiting`` tuples; an iteration serves its ``keys_a_turn`` oldest keys.

    All tuples of an iteration leave together and others enter together, so the queue is not always full: on average
    over admitted tuples, half of an iteration's tuples are missing. This average weights long iterations more. A unit
    that a large part of the stream needs makes a long iteration.
    """
    lacking = 0.0
    turn = 0.0
    state = SteadyState(0.0, 1.0, keys_a_turn, keys_a_turn)
    for _ in range(24):
        wait = characteristic_time(units, max(waiting - lacking, waiting / 2))
        z = units.popularity * waits(units, wait)
        rate = units.popularity / (1.0 + z)
        reads = units.total(rate)
        served = 1.0 / reads
        spread = units.total(rate * (1.0 + z) ** 2) / reads - served**2
        # keys of the iteration that share a unit: those that arrived within the iteration's part of the queue
        chance = np.minimum(rate * turn, 1.0)
        more = keys_a_unit * -np.expm1(-units.popularity * turn / 2 / keys_a_unit)
        share = units.total(chance) / max(units.total(chance * (1.0 + more)), 1e-300) if turn else 1.0
        read = max(1.0, keys_a_turn * share)
        before, turn = turn, min(read * served, waiting)
        lacking = (lacking + (turn + spread / served) / 2) / 2 if before else (turn + spread / served) / 2
        adjacent = min(units.adjacent(np.minimum(rate * turn, 1.0)), read - 1.0)
        state = SteadyState(wait, turn / read, read, read - adjacent)
        if abs(turn - before) <= 1e-4 * turn:
            break
    return state


@kernel
def _cycle(
    popularity: Floats, count: Floats, filling: Floats, often: Floats, wait: float
) -> tuple[float, float, float, float, float]:  # fmt: skip
    """Return sums over all units, if units wait at most ``wait`` and are also read at the rates ``often``.

    See `both_ends`, which calls these ``τ`` and ``g``. The sums are those of waiting tuples, reads, reads at the old
    end, time waited, and squares of the tuples served.
    """
    waiting, reads, old, waited, squares = 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(popularity.size):
        q, g = popularity[i], often[i]
        x = g * wait
        if x < 1e-4:  # too small for differences of exponentials
            none, mean, square = 1.0 - x, wait * (1.0 - x / 2), wait * wait * (1.0 - 2.0 * x / 3.0)
        else:
            none = math.exp(-x)
            mean = (1.0 - none) / g
            square = 2.0 * (1.0 - none * (1.0 + x)) / (g * g)
        later = 1.0 - g / q  # the first tuple is not among the newest
        rate = 1.0 / (1.0 / q + later * mean)
        waiting += count[i] * rate * later * (mean + q * later * filling[i] * square / 2.0)
        reads += count[i] * rate
        old += count[i] * rate * later * none
        waited += count[i] * rate * later * mean
        squares += count[i] * q * q / rate
    return waiting, reads, old, waited, squares


@kernel
def _old_end(popularity: Floats, count: Floats, filling: Floats, often: Floats, goal: float) -> float:
    """Return ``τ`` for which ``goal`` tuples wait."""
    low, high = goal / 4, 4 * goal
    while _cycle(popularity, count, filling, often, low)[0] > goal and low > 1e-9:
        low /= 4
    while _cycle(popularity, count, filling, often, high)[0] < goal and high < 1e15:
        high *= 4
    while high - low > 1e-4 * high:
        middle = math.sqrt(low * high)
        if _cycle(popularity, count, filling, often, middle)[0] < goal:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def both_ends(units: Units, waiting: float, oldest: float, newest: float, keys_a_unit: float) -> SteadyState:
    """Return the steady state of a queue that is served from its old and from its new end, as OP-CACHEJOIN's is.

    Each iteration reads the units of the ``oldest`` keys and of the ``newest`` keys. ``B`` tuples enter per iteration,
    and the newest keys are those of the last ``n`` of them. A unit is read from the new end if one of these keys needs
    it, which happens at a rate of ``g = (1 - e^{-qn}) / B`` per admitted tuple. If that does not happen for ``τ``
    tuples, the unit is read from the old end. With ``D = min(τ, time to the first read from the new end)`` its cycle is
    ``1/q + (1 - g/q)·E[D]``. The returned ``wait`` is that of an average unit.
    """
    q, count, filling = units.popularity, units.count, _filling(units)
    recent = root(lambda n: units.total(keys_a_unit * -np.expm1(-q * n / keys_a_unit)) - newest, newest / 2, newest * 4)
    wanted = -np.expm1(-q * recent)
    spread = 0.0

    def often(turn: float) -> Floats:
        return np.asarray(np.minimum(wanted / turn, q * (1.0 - 1e-9)))

    def wait(turn: float) -> float:
        return _old_end(q, count, filling, often(turn), max(waiting - (turn / 2 + spread) / 2, waiting / 2))

    turn, found = oldest + newest, (0.0, 1.0, 0.0, 0.0, 1.0)
    for _ in range(2):
        turn = root(
            lambda turn: turn * _cycle(q, count, filling, often(turn), wait(turn))[2] - oldest,
            max(1.0, recent), max(2.0 * recent, waiting), exact=1e-4,
        )  # fmt: skip
        found = _cycle(q, count, filling, often(turn), wait(turn))
        spread = max(0.0, found[4] - 1.0 / found[1])
    reads = found[1]
    read = turn * reads
    adjacent = min(2.0 * units.adjacent(np.minimum(q * turn / 2 / (1.0 + q * found[3] / reads), 1.0)), read - 1.0)
    return SteadyState(found[3] / reads, 1.0 / reads, read, read - adjacent)


def _filling(units: Units) -> Floats:
    return np.ones(units.count.size) if units.filling is None else units.filling


def waits(units: Units, wait: float) -> Floats:
    """Return the wait of each unit, if the wait is ``wait`` at a random moment.

    A unit that a large share of the stream needs is needed again by the first of the tuples that its own read admits.
    All of these enter the queue together, so this first tuple waits less than others, by half their number.
    """
    again = -np.expm1(-np.minimum(units.popularity * units.popularity * min(wait, 1e200), 700.0))
    return wait / (1.0 + again * units.popularity / 2)


@kernel
def _held(popularity: Floats, count: Floats, filling: Floats, wait: float) -> float:
    """Return the number of waiting tuples, with the waits of `waits`."""
    total = 0.0
    for i in range(popularity.size):
        q = popularity[i]
        z = q * wait / (1.0 - math.expm1(-q * q * wait) * q / 2)
        total += count[i] * z * (1.0 + filling[i] * z / 2.0) / (1.0 + z)
    return total


@kernel
def _characteristic_time(popularity: Floats, count: Floats, filling: Floats, waiting: float) -> float:
    low, high = waiting / 2, 4 * waiting
    while _held(popularity, count, filling, low) > waiting and low > 1e-9:
        low /= 4
    while _held(popularity, count, filling, high) < waiting and high < 1e30:
        high *= 4
    while high - low > 1e-6 * high:
        middle = math.sqrt(low * high)
        if _held(popularity, count, filling, middle) < waiting:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def characteristic_time(units: Units, waiting: float) -> float:
    """Return ``τ`` for which ``waiting`` tuples wait."""
    return float(_characteristic_time(units.popularity, units.count, _filling(units), waiting))


def root(function: Callable[[float], float], low: float, high: float, exact: float = 1e-6) -> float:
    """Return the zero of an increasing function, by bisection with geometric means; the ends move out if needed."""
    while function(low) > 0 and low > 1e-12:
        low /= 4
    while function(high) < 0 and high < 1e30:
        high *= 4
    for _ in range(60):
        middle = math.sqrt(low * high)
        if high - low <= exact * high:
            break
        if function(middle) < 0:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)
