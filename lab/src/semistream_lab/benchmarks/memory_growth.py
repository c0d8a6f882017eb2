"""`semistream bench memory`: does the process grow by no more than the budget?

A budget counts what a join reserves. This benchmark measures what the process really uses: resident memory before a
long run of one join, and its peak during the run, in a separate process. A join may add its budget plus `ALLOWANCE`.
The allowance covers what no budget counts: batches on their way in and out, free lists of the allocators, and code
that a rare case compiles late.

Everything else is created before the first measurement: a small run of the same join compiles its code, and the
source of the stream has built its tables.

Examples
--------
>>> import tempfile
>>> spec = MemorySpec(rows=2_000, tuples=5_000, batch_rows=1_000)
>>> with tempfile.TemporaryDirectory() as folder:
...     growth = measure("hybridjoin", prepare(spec, folder), spec, memory="50%")
>>> growth.tuples, growth.peak_reserved <= growth.budget
(5000, True)
"""

from __future__ import annotations

import ctypes
import datetime
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.core.machine import describe_machine
from semistream.core.units import parse_bytes
from semistream.joins import algorithms, find
from semistream.relation.relation import Relation
from semistream_lab.workloads.workload import zipf

__all__ = [
    "ALLOWANCE",
    "WIDE",
    "Growth",
    "MemorySpec",
    "bench_memory",
    "bounded",
    "measure",
    "measure_apart",
    "prepare",
]

ALLOWANCE = 64_000_000
"""Bytes that a process may grow beyond the budget, however long it runs."""

_WARM_UP_ROWS = 20_000
_WARM_UP = {"least": 1_000, "20%": 30_000}


@dataclass(frozen=True)
class MemorySpec:
    """What to measure.

    Parameters
    ----------
    rows, row_bytes
        Rows of R, and bytes per row.
    tuples, batch_rows
        Tuples of the stream, and tuples per batch.
    budgets
        Budgets of each join: shares of R, bytes, or ``"least"`` for the minimum that the join needs.
    least_tuples
        Tuples of the stream for the budget ``"least"``, with which many joins read pages for every single tuple.
    drain
        Drain every batch, as a micro-batch is.
    text_bytes
        Bytes of additional text in each stream tuple. A tuple this wide is copied for every row of R that it matches.
    direct
        Read past the page cache. Reads through it are faster and need the same memory, as the cache is not part of the
        process.
    """

    rows: int = 2_000_000
    row_bytes: int = 120
    tuples: int = 20_000_000
    least_tuples: int = 100_000
    batch_rows: int = 50_000
    budgets: tuple[str, ...] = ("least", "1%", "5%", "10%")
    exponent: float = 1.0
    drain: bool = False
    text_bytes: int = 0
    direct: bool = True
    seed: int = 1

    def stream(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield an endless Zipf stream for an R of ``rows`` rows."""
        source = zipf(rows, None, self.exponent, "random", row_bytes=self.row_bytes, seed=self.seed).stream
        for batch in source.batches():
            for begin in range(0, batch.num_rows, self.batch_rows):
                part = batch.slice(begin, self.batch_rows)
                if self.text_bytes:
                    part = part.append_column("text", pa.array(["x" * self.text_bytes] * part.num_rows))
                yield part


WIDE = MemorySpec(rows=20_000, row_bytes=5_000, tuples=20_000, least_tuples=1_000, batch_rows=50, text_bytes=40_000)
"""Stream tuples of 40 KB that match rows of 5 KB: a million pairs would be 45 GB."""


@dataclass(frozen=True)
class Growth:
    """Memory of one run, in bytes."""

    algorithm: str
    memory: str
    budget: int
    peak_reserved: int
    tuples: int
    before: int
    """Resident memory before the join was created."""
    highest: int
    """Peak of the resident memory."""
    halfway: int
    """Resident memory after half of the tuples."""
    after: int
    """Resident memory after all tuples, with the join still open."""

    @property
    def growth(self) -> int:
        """Peak growth of the process."""
        return self.highest - self.before

    @property
    def beyond(self) -> int:
        """Growth beyond the budget; it should be at most `ALLOWANCE`."""
        return self.growth - self.budget

    @property
    def creep(self) -> int:
        """Growth in the second half of the run, when the join has long allocated everything it holds."""
        return self.after - self.halfway


def prepare(spec: MemorySpec, directory: str | os.PathLike[str]) -> Path:
    """Return the path of R under ``directory``; build R unless it exists."""
    path = Path(directory) / f"memory-{spec.rows}x{spec.row_bytes}"
    if not path.exists():
        master = zipf(spec.rows, 1, spec.exponent, "random", row_bytes=spec.row_bytes, seed=spec.seed).master
        reader = pa.RecordBatchReader.from_batches(master.schema, master.batches())
        Relation.build(reader, path, "product_id", memory="64MB").close()
    return path


def measure(algorithm: str, path: Path, spec: MemorySpec, *, memory: str) -> Growth:
    """Run one join in this process.

    The numbers are only meaningful in a new process: see `measure_apart`.
    """
    _warm_up(algorithm, spec)
    batches = spec.stream(spec.rows)
    first = next(batches)
    asked = min(spec.tuples, spec.least_tuples) if memory == "least" else spec.tuples
    with Relation.open(path, direct=spec.direct) as relation:
        relation.locate(relation.key.encode(first.slice(0, 1), ["product_id"])[0])
        budget = _budget(algorithm, relation, first.schema, memory, spec)
        gc.collect()
        pa.default_memory_pool().release_unused()
        _trim()
        before = _reset_highest()
        join = find(algorithm)(relation, on="product_id", how="inner", memory=budget)
        halfway, tuples, sampled = 0, 0, 0
        for batch in _until(asked, first, batches):
            for _ in join.process([batch]) if spec.drain else join.feed(batch):
                pass
            tuples += batch.num_rows
            sampled = max(sampled, _resident())
            if tuples >= asked // 2 and not halfway:
                halfway = _resident()
        after = _resident()
        for _ in join.drain():
            pass
        highest = max(sampled, _highest() or 0, _resident())
        return Growth(algorithm, memory, join.budget.total, join.budget.peak, tuples, before, highest, halfway, after)


def measure_apart(algorithm: str, path: Path, spec: MemorySpec, *, memory: str) -> Growth:
    """Run one join in a new process."""
    request = json.dumps({"algorithm": algorithm, "path": str(path), "memory": memory, "spec": asdict(spec)})
    done = subprocess.run(
        [sys.executable, "-m", "semistream_lab.benchmarks.memory_growth", request],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{algorithm} with {memory} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return Growth(**json.loads(done.stdout.splitlines()[-1]))


def bench_memory(
    spec: MemorySpec,
    directory: Path,
    only: tuple[str, ...] = (),
    note: Callable[[str, int], None] = lambda *_: None,
) -> dict[str, Any]:
    """Measure joins with every budget of ``spec``, each run in a new process.

    ``note`` is called with the name of the run, and with 1 after each run.

    Returns
    -------
    dict
        Ready for JSON: ``runs`` with the numbers of each run, ``allowance``, and whether all runs stayed ``within`` it.
    """
    path = prepare(spec, directory)
    runs = []
    for algorithm in bounded(only):
        for memory in spec.budgets:
            note(f"{algorithm}, {memory}", 0)
            growth = measure_apart(algorithm, path, spec, memory=memory)
            note("", 1)
            runs.append(asdict(growth) | {"growth": growth.growth, "beyond": growth.beyond, "creep": growth.creep})
    return {
        "spec": asdict(spec),
        "machine": describe_machine(directory),
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "allowance": ALLOWANCE,
        "within": all(run["beyond"] <= ALLOWANCE for run in runs),
        "runs": runs,
    }


def bounded(only: tuple[str, ...] = ()) -> list[str]:
    """Return the bounded joins among ``only``, or all bounded joins."""
    return [algorithm for algorithm in only or algorithms() if find(algorithm).bounded]


def _warm_up(algorithm: str, spec: MemorySpec) -> None:
    """Run the same join on a small R, so that compiled code and loaded libraries do not count."""
    fewer = 50 if spec.text_bytes else 1
    small = replace(spec, rows=_WARM_UP_ROWS // fewer, batch_rows=min(spec.batch_rows, 10_000))
    with (
        tempfile.TemporaryDirectory() as folder,
        Relation.open(prepare(small, folder), direct=spec.direct) as relation,
    ):
        batches = small.stream(small.rows)
        first = next(batches)
        for memory, tuples in _WARM_UP.items():
            join = find(algorithm)(
                relation, on="product_id", how="inner", memory=_budget(algorithm, relation, first.schema, memory, spec)
            )
            for batch in _until(tuples // fewer, first, batches):
                for _ in join.process([batch]) if spec.drain else join.feed(batch):
                    pass
            for _ in join.drain():
                pass


def _budget(algorithm: str, relation: Relation, schema: pa.Schema, memory: str, spec: MemorySpec) -> int:
    # the budget must hold a row and a copy of it for the output
    least = max(find(algorithm).minimum_memory(relation, schema, on="product_id"), 3 * spec.text_bytes)
    return least if memory == "least" else max(least, parse_bytes(memory, of=relation.nbytes))


def _until(tuples: int, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    batch = first
    while tuples > 0:
        yield batch.slice(0, tuples)
        tuples -= batch.num_rows
        if tuples > 0:
            batch = next(batches)


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _highest() -> int | None:
    """Return the peak of the resident memory since `_reset_highest`, if the system reports it."""
    if not _can_reset:
        return None
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


_can_reset = False


def _reset_highest() -> int:
    """Reset the peak of the resident memory to its current value, and return it."""
    global _can_reset
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        _can_reset = True
    except OSError:
        _can_reset = False  # then it is sampled once per batch
    return _resident()


def _trim() -> None:
    """Return free memory of the C library to the system, where possible."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _main(request: str) -> None:
    asked = json.loads(request)
    spec = MemorySpec(**{**asked["spec"], "budgets": tuple(asked["spec"]["budgets"])})
    print(json.dumps(asdict(measure(asked["algorithm"], Path(asked["path"]), spec, memory=asked["memory"]))))


if __name__ == "__main__":
    _main(sys.argv[1])
