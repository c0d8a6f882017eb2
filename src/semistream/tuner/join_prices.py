"""Measures the CPU cost of whole joins, relative to the sum of the costs of their single operations.

Each join processes an endless stream over a relation on disk, and is timed. Its model predicts the time. The factor on
the CPU part that makes both agree is stored with the constants, and the model uses it from then on.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from itertools import cycle

import pyarrow as pa

from semistream.core.units import parse_bytes
from semistream.costs import Constants, Operations, Setting, costs_of, simulated_seconds
from semistream.joins import algorithms, create, find
from semistream.joins.interface.contract import Overlap
from semistream.relation.relation import Relation

__all__ = ["factor_of", "measure_joins", "priced"]

_LEAST, _MOST, _HALVINGS = 1 / 16, 256.0, 40
_WHILES = 4


def priced() -> list[str]:
    """Return the joins that are measured as a whole: the ones that compete on a device without seeks."""
    return [name for name in algorithms() if find(name).calibrated]


def measure_joins(
    relation: Relation,
    stream: Sequence[pa.RecordBatch],
    constants: Constants,
    names: Sequence[str],
    *,
    exponent: float = 1.0,
    memory: int | str = "10%",
    seconds: float = 1.0,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[tuple[str, float], ...]:
    """Return the factor of each join, for `Constants.processor`.

    Parameters
    ----------
    relation, stream
        The relation, and batches that are joined on its key; the batches are repeated.
    constants
        Costs of operations and reads.
    names
        The joins.
    exponent
        Skew of the stream; its frequent keys are anywhere in R.
    seconds
        Approximate time per join, after a warm-up of twice that time.
    progress
        Called with the join that is measured.
    """
    found = []
    total = parse_bytes(memory, of=relation.nbytes)
    constants = dataclasses.replace(constants, processor=())
    setting = Setting.of(relation, stream[0].schema, exponent=exponent, shape="random", constants=constants)
    for name in sorted(names):
        progress(name)
        taken = _seconds_a_tuple(name, relation, stream, total, seconds)
        expected = costs_of(name).predict(setting, total)
        found.append((name, factor_of(find(name).overlap, expected.operations, expected.io_seconds, constants, taken)))
    return tuple(found)


def _seconds_a_tuple(
    name: str, relation: Relation, stream: Sequence[pa.RecordBatch], memory: int, seconds: float
) -> float:
    """Return the seconds per tuple in the best of several intervals; the others were disturbed by other work."""
    join = create(name, relation, on=list(relation.key.names), how="inner", memory=memory, schema=stream[0].schema)
    whiles: list[float] = []
    began = since = time.perf_counter()
    before, warm = 0, False
    for batch in cycle(stream):
        for _ in join.feed(batch):
            pass
        now, done = time.perf_counter(), join.stats.rows_done
        if not warm:
            warm = now - began >= 2 * seconds
            before, since = done, now
        elif now - since >= seconds / 3 and done > before:
            whiles.append((now - since) / (done - before))
            before, since = done, now
            if len(whiles) == _WHILES:
                break
    return min(whiles)


def factor_of(overlap: Overlap, done: Operations, io_seconds: float, constants: Constants, taken: float) -> float:
    """Return the factor on the CPU part with which the model's time per tuple equals the measured time.

    >>> from semistream.costs import load_constants
    >>> done, constants = Operations(probes=1.0), load_constants("disk-2010")
    >>> one = simulated_seconds(Overlap.NOTHING, done, 0.0, constants)
    >>> round(factor_of(Overlap.NOTHING, done, 0.5, constants, 0.5 + 3 * one), 6)
    3.0
    """
    low, high = _LEAST, _MOST
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        less = simulated_seconds(overlap, done, io_seconds, constants, middle) < taken
        low, high = (middle, high) if less else (low, middle)
    return high
