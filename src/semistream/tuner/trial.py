"""Runs joins on a sample of the stream, to compare their measured rates with their models.

A model describes a stream by one number, its Zipf exponent. If that fits a sample poorly, or keys are absent, or the
operating system caches pages, one second of measurement of the best joins is more accurate than the models.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle

import pyarrow as pa

from semistream.core.arguments import listed
from semistream.core.errors import SemistreamError
from semistream.costs import Prediction
from semistream.joins import create
from semistream.relation.relation import Relation
from semistream.tuner.tuning import Tuning

__all__ = ["rate_on", "sample_rows", "try_best"]

_SAMPLE_ROWS = 1_000_000
_BATCH_ROWS = 20_000
"""Tuples that are joined and drained together: about the size of a short micro-batch."""


def sample_rows(
    batches: Iterable[pa.RecordBatch], most: int = _SAMPLE_ROWS, batch_rows: int = _BATCH_ROWS
) -> list[pa.RecordBatch]:
    """Return the first rows of a sample, in batches for the measurement."""
    rows, taken = 0, []
    for batch in batches:
        taken.append(batch.slice(0, most - rows))
        rows += taken[-1].num_rows
        if rows >= most:
            break
    if not rows:
        return []
    whole = pa.Table.from_batches(taken).combine_chunks()
    return [part for part in whole.to_batches(max_chunksize=batch_rows) if part.num_rows]


def rate_on(
    relation: Relation, prediction: Prediction, sample: Sequence[pa.RecordBatch], on: Sequence[str], memory: int,
    seconds: float = 1.0,
) -> float:  # fmt: skip
    """Return the tuples per second of a join on a repeated sample, after a warm-up of the same time.

    The first batch is never measured: it may include seconds of kernel compilation.
    """
    join = create(
        prediction.algorithm, relation, on=list(on), memory=memory, schema=sample[0].schema, **prediction.options
    )
    batches = cycle(sample)
    for _ in join.process([next(batches)]):
        pass
    began = time.perf_counter()
    rows, since = 0, began
    for batch in batches:
        for _ in join.process([batch]):
            pass
        now = time.perf_counter()
        rows += batch.num_rows
        if now - since >= seconds:
            # a batch that takes longer than the whole time is both warm-up and measurement
            if since > began or now - began >= 2 * seconds:
                break
            rows, since = 0, now
    return rows / (time.perf_counter() - since)


def try_best(
    relation: Relation,
    tuning: Tuning,
    sample: Sequence[pa.RecordBatch],
    on: Sequence[str],
    *,
    most: int = 2,
    seconds: float = 1.0,
    note: Callable[[str], None] = lambda _: None,
) -> Tuning:
    """Return the tuning with measured rates of its best joins; the fastest of them is then recommended.

    Parameters
    ----------
    relation, tuning
        The relation, and its tuning.
    sample
        See `sample_rows`.
    on
        The sample's key columns.
    most
        Number of joins to run, the first of `Tuning.candidates`.
    seconds
        Time per join, and the same time again to warm up.
    note
        Called with the join that is run.
    """
    sample, on = list(sample), listed(on)  # read again for each join
    if not sample:
        raise SemistreamError("joins are measured on a sample of the stream, but this sample has no rows; give another")
    rates = {}
    for found in tuning.candidates[:most]:
        note(found.algorithm)
        own_copy = relation
        if relation.path is not None:
            own_copy = Relation.open(relation.path, version=relation.version, by=relation.stored.by)
        with own_copy as own:
            rates[found.algorithm] = rate_on(own, found, sample, on, tuning.memory, seconds)
    return dataclasses.replace(tuning, measured=rates)
