"""`semistream bench joins`: compare the service rates of all joins on the real disk.

The workload is the papers': R with unique keys, a Zipf stream, and a budget of a few per cent of R. The stream arrives
in batches, as in Spark, and each batch is *drained*: its time ends when its last result is out. R is read past the page
cache, in one process.

All joins are open together and take turns with the same batch. The order rotates from round to round, so other load on
the machine affects all of them equally. The first batches (compilation, filling of caches) are reported separately. A
rate is the rows of a batch divided by the *median* time of the measured batches.

Optionally the stream is *continuous*, as in the papers. Nothing is drained, and tuples wait across batches. A rate is
then the number of joined tuples divided by the time of all measured batches. Joins that need many waiting tuples to
amortise a read are designed for this.
"""

from __future__ import annotations

import datetime
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.core.arguments import check_at_least
from semistream.core.errors import NotARelationError, SemistreamError, UnsupportedJoinError
from semistream.core.machine import describe_machine
from semistream.core.statistics import JoinStatistics
from semistream.core.units import check_memory, format_bytes, parse_bytes
from semistream.joins import algorithms, create, find
from semistream.joins.interface.join import Join
from semistream.relation.devices.file_device import FileDevice
from semistream.relation.relation import Relation
from semistream.workloads.keys.key_source import Shape
from semistream.workloads.table_source import TableSource
from semistream_lab.workloads.masters import Layout, master
from semistream_lab.workloads.workload import Workload, zipf

__all__ = ["BenchError", "RateSpec", "bench_joins", "code_version", "prepare_relation"]

Report = Callable[[int], None]
Note = Callable[[str, int], None]


class BenchError(SemistreamError):
    """The benchmark cannot run here, or a join gave a wrong result in it."""


@dataclass(frozen=True)
class RateSpec:
    """What to measure.

    Parameters
    ----------
    rows, row_bytes
        Rows of R, and bytes of values per row, including the key.
    memory
        Budget of each join: bytes, or a share of R.
    batch_rows, batches, warm_up
        Stream tuples per batch, number of measured batches, and number of batches before them.
    exponent, shape
        Skew of the stream's keys. ``random``: frequent keys are anywhere in R, as in real master data. ``noperm``: they
        are next to each other, and R is ordered by frequency, as X-HYBRIDJOIN assumes.
    layout
        Kind of R's rows; see `semistream_lab.workloads.masters.master`.
    absent
        Share of the stream whose keys are not in R, but between keys of R.
    only
        Ids of the joins to run. Empty: all joins of the registry.
    continuous
        Do not drain the stream after every batch. The batches and the warm-up must then be long enough to fill the
        memory: MESHJOIN holds the most tuples, as many as fit.
    """

    rows: int = 10_000_000
    row_bytes: int = 120
    memory: str = "5%"
    batch_rows: int = 100_000
    batches: int = 7
    warm_up: int = 3
    exponent: float = 1.0
    layout: Layout = "random"
    absent: float = 0.0
    shape: Shape = "random"
    page_bytes: int = 8192
    only: tuple[str, ...] = ()
    seed: int = 1
    continuous: bool = False

    def __post_init__(self) -> None:
        for name, least in (("rows", 1), ("batch_rows", 1), ("batches", 1), ("warm_up", 0)):
            check_at_least(least, **{name: getattr(self, name)})
        check_memory(self.memory)
        for name in self.only:
            find(name)
        self.workload()  # refuses invalid values

    @property
    def ids(self) -> list[str]:
        """The joins to run."""
        return list(self.only) or algorithms()

    def workload(self) -> Workload:
        """Both sides of the join."""
        stream_rows = self.batch_rows * (self.batches + self.warm_up)
        return zipf(
            self.rows, stream_rows, self.exponent, self.shape, row_bytes=self.row_bytes, absent=self.absent,
            seed=self.seed,
        )  # fmt: skip

    def master(self, directory: Path) -> TableSource:
        """R's rows."""
        return master(
            self.layout, self.rows, row_bytes=self.row_bytes, stride=2 if self.absent else 1, seed=self.seed,
            directory=directory / "tpch",
        )  # fmt: skip

    def stream_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the stream in batches of ``batch_rows``."""
        held: list[pa.RecordBatch] = []
        rows = 0
        for part in self.workload().stream.batches():
            held.append(part)
            rows += part.num_rows
            while rows >= self.batch_rows:
                whole = pa.concat_batches(held)
                yield whole.slice(0, self.batch_rows)
                held, rows = [whole.slice(self.batch_rows)], rows - self.batch_rows


def prepare_relation(spec: RateSpec, directory: Path, wrote: Report = lambda _: None) -> Path:
    """Return R's path under ``directory``; build R unless an earlier run did."""
    kind = f"zipf-{spec.rows}x{spec.row_bytes}" if spec.layout == "random" else f"{spec.layout}-{spec.rows}"
    path = directory / f"{kind}{'-gaps' if spec.absent else ''}-pages-{spec.page_bytes}"
    try:
        with Relation.open(path) as relation:
            if relation.row_count == spec.rows:
                return path
    except NotARelationError:
        pass
    directory.mkdir(parents=True, exist_ok=True)
    needed, free = spec.rows * (spec.row_bytes + 16), shutil.disk_usage(directory).free
    if needed > free:
        raise BenchError(
            f"R needs about {format_bytes(needed)}, and {directory} has {format_bytes(free)} free; give another "
            "directory, or fewer rows"
        )
    source = spec.master(directory)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in source.batches():
            yield batch
            wrote(batch.num_rows)

    reader = pa.RecordBatchReader.from_batches(source.schema, batches())
    Relation.build(reader, path, spec.workload().master_key, page_size=spec.page_bytes, overwrite=True).close()
    return path


@dataclass
class _Contestant:
    """One join, and its time for each batch."""

    join: Join
    open_seconds: float
    warm_up_seconds: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    before: JoinStatistics = field(default_factory=JoinStatistics)
    after: JoinStatistics = field(default_factory=JoinStatistics)
    expected: int = 0
    rows_out: int = 0

    def run(self, batch: pa.RecordBatch, present: int, *, drain: bool) -> float:
        """Join one batch, of which ``present`` rows have a match; drain it if ``drain`` is set."""
        begin = time.perf_counter()
        results = self.join.process([batch]) if drain else self.join.feed(batch)
        self.rows_out += sum(result.num_rows for result in results)
        self.expected += present
        return time.perf_counter() - begin

    def finish(self) -> None:
        """Keep the counts, drain the join, and check that no tuple was lost: keys are unique in R."""
        self.after = self.join.stats
        self.rows_out += sum(result.num_rows for result in self.join.drain())
        if self.rows_out != self.expected:
            raise BenchError(
                f"{self.join.id} gave {self.rows_out:,} rows for {self.expected:,} stream tuples with one match each "
                "in R; please report this as a bug"
            )

    def result(self, spec: RateSpec) -> dict[str, Any]:
        after, before = self.after, self.before
        done = max(1, after.rows_done - before.rows_done)
        drained = spec.batch_rows / statistics.median(self.seconds)
        return {
            "title": self.join.title,
            "rate": done / sum(self.seconds) if spec.continuous else drained,
            "seconds": self.seconds,
            "warm_up_seconds": self.warm_up_seconds,
            "open_seconds": self.open_seconds,
            "pages_read": after.pages_read - before.pages_read,
            "reads": after.reads - before.reads,
            "io_seconds": after.io_seconds - before.io_seconds,
            "hit_ratio": (after.cache_hits - before.cache_hits) / done,
            "bytes_held": self.join.budget.peak,
            "budget": self.join.budget.total,
            "bounded": self.join.bounded,
        }


def bench_joins(spec: RateSpec, path: Path, note: Note = lambda *_: None) -> dict[str, Any]:
    """Measure the joins of ``spec`` on the relation that `prepare_relation` built.

    Parameters
    ----------
    spec
        What to measure.
    path
        The relation.
    note
        Called with the current step, and with 1 each time a join has finished a batch.

    Returns
    -------
    dict
        Ready for JSON. ``rates`` has the stream tuples per second of each join, ``joins`` the raw times and counts,
        ``skipped`` the reasons why joins were not run.
    """
    with ExitStack() as stack:
        first = stack.enter_context(Relation.open(path))
        contestants: dict[str, _Contestant] = {}
        skipped: dict[str, str] = {}
        for name in spec.ids:
            note(f"opening {name}", 0)
            reason = _too_large(name, first)
            if reason is None:
                try:
                    # Each join has its own device, because the device counts the reads.
                    contestants[name] = _open(name, spec, stack.enter_context(Relation.open(path)))
                except UnsupportedJoinError as error:
                    reason = str(error)
            if reason is not None:
                skipped[name] = reason
        _measure(spec, contestants, note)
        joins = {name: contestant.result(spec) for name, contestant in contestants.items()}
        return {
            "rates": {name: found["rate"] for name, found in joins.items()},
            "joins": joins,
            "skipped": skipped,
            "spec": asdict(spec),
            "relation": {"bytes": first.nbytes, "pages": first.page_count, "index_bytes": first.index_bytes},
            "device": _device(first),
            "machine": describe_machine(path),
            "commit": code_version(),
            "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }


def _open(name: str, spec: RateSpec, relation: Relation) -> _Contestant:
    workload = spec.workload()
    begin = time.perf_counter()
    memory = parse_bytes(spec.memory, of=relation.nbytes)  # exact even for a small R
    join = create(name, relation, on=workload.stream_key, how="inner", memory=memory, schema=workload.stream.schema)
    return _Contestant(join, time.perf_counter() - begin)


def _measure(spec: RateSpec, contestants: dict[str, _Contestant], note: Note) -> None:
    names = list(contestants)
    for number, batch in enumerate(spec.stream_batches()):
        warm = number >= spec.warm_up
        keys = batch[spec.workload().stream_key].to_numpy()
        present = int((keys % 2 == 0).sum()) if spec.absent else keys.size
        turn = number % max(1, len(names))
        for name in names[turn:] + names[:turn]:
            contestant = contestants[name]
            if number == spec.warm_up:
                contestant.before = contestant.join.stats
            note(f"{'batch' if warm else 'warm-up'}: {name}", 0)
            passed = contestant.run(batch, present, drain=not spec.continuous)
            (contestant.seconds if warm else contestant.warm_up_seconds).append(passed)
            note("", 1)
    for contestant in contestants.values():
        contestant.finish()


def _too_large(name: str, relation: Relation) -> str | None:
    """Return why an unbounded join cannot run here, or None if it can."""
    if find(name).bounded:
        return None
    needed = relation.nbytes + 64 * relation.row_count
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    if needed < 0.7 * available:
        return None
    return f"needs about {format_bytes(needed)} of memory, and {format_bytes(available)} is free"


def _device(relation: Relation) -> dict[str, Any]:
    device = relation.device
    assert isinstance(device, FileDevice)
    return {**asdict(device.measure()), "method": device.method}


def code_version() -> str:
    """Return the commit of this code, marked if files of the package have changed since, or ``unknown``."""
    git = ["git", "-C", str(Path(__file__).parents[1])]
    try:
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no", "."],
                                 capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return f"{commit} with changes" if changed else commit
