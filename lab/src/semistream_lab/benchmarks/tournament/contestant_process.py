"""One contestant in its own process.

Orders and answers are lines of JSON. First the contestant rehearses: it joins a small R, so that imports and
compilation happen before memory is counted. Then the limit is set, R is opened, and batches arrive. Each batch is a
file, which is read before the clock starts.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from semistream_lab.benchmarks.memory_growth import _trim
from semistream_lab.benchmarks.peers import Contestant, Task, contestant
from semistream_lab.benchmarks.peers.dataset import Dataset
from semistream_lab.benchmarks.tournament.answers import Answer
from semistream_lab.benchmarks.tournament.memory_limit import drop_page_cache, limit_data
from semistream_lab.workloads.workload import zipf

__all__ = ["REHEARSAL_ROWS", "main", "rehearsal"]

REHEARSAL_ROWS = 20_000


def rehearsal(whole: Dataset) -> Task:
    """Return a small task that runs all code once."""
    data = replace(whole, rows=REHEARSAL_ROWS, seed=1)
    return Task(data, data.nbytes // 5, 5_000, 1.0, "random")


def main(orders: TextIO, answers: TextIO) -> None:
    """Execute orders until there are no more."""
    asked = json.loads(next(orders))
    kind = contestant(asked["name"])
    task = Task(**{**asked["task"], "data": Dataset(**asked["task"]["data"])})
    told = _Told(orders, answers)
    try:
        _rehearse(kind, rehearsal(task.data))
        before = _anonymous()
        told.answer(resident=before)
        more = next(told.orders())["limit"]  # bytes beyond current use; None: limited by a cgroup, or not at all
        limit = limit_data(more) if more else None
        joining = kind(task)
        told.answer(limit=limit, counts=joining.counts())
        highest = _anonymous()
        for order in told.orders():
            done, taken = _batch(joining, Path(order["file"]), check=order["check"])
            highest = max(highest, taken)
            told.answer(**done, counts=joining.counts(), grew=highest - before)
        joining.close()
    except BaseException as error:  # report every failure; it ends only this contestant
        text = traceback.format_exc()
        told.answer(error=f"{type(error).__name__}: {error}", traceback=text)
        raise


class _Told:
    def __init__(self, orders: TextIO, answers: TextIO) -> None:
        self._orders = orders
        self._answers = answers

    def orders(self) -> Iterator[dict[str, Any]]:
        for line in self._orders:
            yield json.loads(line)

    def answer(self, **said: Any) -> None:
        self._answers.write(json.dumps(said) + "\n")
        self._answers.flush()


def _rehearse(kind: type[Contestant], task: Task) -> None:
    joining = kind(task)
    absent = 0.3 if task.data.stride > 1 else 0.0
    stream = zipf(task.data.rows, 3 * task.batch_rows, 1.0, "random", absent=absent).stream
    answer = Answer()
    for batch in pa.Table.from_batches(stream.batches()).combine_chunks().to_batches(max_chunksize=task.batch_rows):
        joining.timed(batch, answer.add)
    joining.close()
    del joining
    gc.collect()
    pa.default_memory_pool().release_unused()
    _trim()


def _batch(joining: Contestant, path: Path, *, check: bool) -> tuple[dict[str, Any], int]:
    """Join a batch and count the rows of the result; with ``check``, also compute their checksum."""
    with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
        batch = reader.get_batch(0)
    joining.drop_pages()
    drop_page_cache(joining.files())
    answer = Answer()

    def take(piece: pa.RecordBatch) -> None:
        if check:
            answer.add(piece)
        else:
            answer.rows += piece.num_rows

    with _sampled() as seen:
        seconds = joining.timed(batch, take)
    return {"seconds": seconds, **asdict(answer)}, max(seen)


@contextmanager
def _sampled() -> Iterator[list[int]]:
    """Sample the memory of this process periodically."""
    seen = [_anonymous()]
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.02):
            seen.append(_anonymous())

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        seen.append(_anonymous())
        ended.set()
        watcher.join()


def _anonymous() -> int:
    """Return the resident bytes that are not backed by a file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    # output that a library prints must not be read as an answer
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    main(sys.stdin, answers)
