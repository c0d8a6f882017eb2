"""`semistream bench joins --relation … --sample …`: measure joins on a given relation and a sample of its stream."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.core.errors import BudgetTooSmallError, UnsupportedJoinError
from semistream.core.machine import describe_machine
from semistream.joins import Join, algorithms, create, find
from semistream.relation.relation import Relation
from semistream_lab.benchmarks.join_rates import BenchError, code_version

__all__ = ["bench_sample"]


def bench_sample(
    path: Path,
    sample: Sequence[pa.RecordBatch],
    on: Sequence[str],
    memory: str,
    *,
    only: Sequence[str] = (),
    batches: int = 7,
    warm_up: int = 3,
    note: Callable[[str, int], None] = lambda *_: None,
) -> dict[str, Any]:
    """Return the rates of left joins that take turns with the batches of a sample, each drained; see `bench_joins`.

    If the sample is shorter than all batches together, it is repeated. All joins must give the same number of rows.
    """
    if not sample:
        raise BenchError("the sample has no rows; give a file with tuples of the stream")
    skipped: dict[str, str] = {}
    opened: dict[str, Join] = {}
    with ExitStack() as stack:
        for name in only or [name for name in algorithms() if find(name).bounded]:
            relation = stack.enter_context(Relation.open(path))
            try:
                opened[name] = create(name, relation, on=list(on), memory=memory, schema=sample[0].schema)
            except (UnsupportedJoinError, BudgetTooSmallError) as error:
                skipped[name] = str(error)
        seconds, rows = dict.fromkeys(opened, 0.0), dict.fromkeys(opened, 0)
        tuples = 0
        for number, batch in enumerate(islice(cycle(sample), warm_up + batches)):
            turn = number % max(1, len(opened))
            for name in [*opened][turn:] + [*opened][:turn]:
                note(f"{'batch' if number >= warm_up else 'warm-up'}: {name}", 0)
                began = time.perf_counter()
                rows[name] += sum(result.num_rows for result in opened[name].process([batch]))
                seconds[name] += (time.perf_counter() - began) * (number >= warm_up)
                note("", 1)
            tuples += batch.num_rows * (number >= warm_up)
        if len(set(rows.values())) > 1:
            raise BenchError(
                f"joins gave different numbers of rows for one stream: {rows}; please report this as a bug"
            )
        return {
            "rates": {name: tuples / max(taken, 1e-9) for name, taken in seconds.items()},
            "seconds": seconds,
            "pages_read": {name: join.stats.pages_read for name, join in opened.items()},
            "skipped": skipped,
            "tuples": tuples,
            "memory": memory,
            "machine": describe_machine(path),
            "commit": code_version(),
            "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
