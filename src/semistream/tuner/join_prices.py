"""What a join costs the processor as a whole, over what its operations are priced at one by one.

Each join is given a stream that goes on, over a relation on the disk, and timed. Its model says what it should have
taken; the factor on the processor's part that makes both agree is kept with the constants, and used by the model from
then on.
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
    """Return the joins that are measured as a whole: those that compete on a device that does not seek."""
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
        What is joined, on the relation's key; the batches come again and again.
    constants
        Prices of operations and reads.
    names
        The joins.
    exponent
        Skew of the stream, whose frequent keys lie anywhere.
    seconds
        Time for each join, about, after twice as long to warm up.
    progress
        Told which join is measured.
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
    """Return what a tuple takes in the best of some whiles: the others were disturbed."""
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
    """Return the factor on the processor's part with which what is done for a tuple is priced at what it took.

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
