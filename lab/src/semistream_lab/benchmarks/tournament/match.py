"""`semistream bench peers`: compare our joins with the alternatives, on the same data, in the same memory.

Each contestant has its own process. All take turns with the same batch, and the order rotates from round to round, so
other load on the machine affects all equally. If they do not fit into the machine's memory together, they run in
groups. A batch is read before the clock starts, and its time ends when its last result is out. A rate is the tuples of
a batch divided by the median of these times. A contestant with a wrong answer is not rated.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.core.machine import describe_machine
from semistream_lab.benchmarks.join_rates import BenchError, code_version
from semistream_lab.benchmarks.peers import Task, contestant
from semistream_lab.benchmarks.peers.dataset import KEY
from semistream_lab.benchmarks.tournament.answers import Answer, right_answer
from semistream_lab.benchmarks.tournament.contestant_process import rehearsal
from semistream_lab.benchmarks.tournament.memory_limit import MemoryGroup, available_bytes, own_parent, said
from semistream_lab.benchmarks.tournament.peer_spec import PeerSpec

__all__ = ["bench_peers", "prepare"]

Note = Callable[[str, int], None]
Kept = Callable[[dict[str, Any]], object]

_PROCESS = 400 << 20
"""Approximate bytes of a process before it holds any part of R."""


def prepare(specs: list[PeerSpec], directory: Path, note: Note = lambda *_: None) -> dict[str, str]:
    """Store R in the format of each contestant; return the contestants that cannot take part, with reasons."""
    skipped = {}
    for name in dict.fromkeys(name for spec in specs for name in spec.names):
        reason = contestant(name).missing()
        if reason is not None:
            skipped[name] = reason
    for spec in specs:
        for data in (spec.data(directory), rehearsal(spec.data(directory)).data):
            note("R as Parquet", 0)
            data.write()
            for name in spec.names:
                if name not in skipped:
                    note(f"R for {name}", 0)
                    contestant(name).prepare(data)
        note("", 1)
    return skipped


def bench_peers(
    specs: list[PeerSpec],
    directory: Path,
    cgroup: Path | None = None,
    note: Note = lambda *_: None,
    kept: Kept = lambda _: None,
) -> dict[str, Any]:
    """Measure the contestants at all points.

    Parameters
    ----------
    specs
        The points to measure.
    directory
        Directory of R in all formats.
    cgroup
        A memory cgroup in which groups can be created.
    note
        Called with the current step, and with 1 each time a contestant has finished a batch.
    kept
        Called with the result so far after each point, as a run with many points takes hours and may be interrupted.

    Returns
    -------
    dict
        Ready for JSON. Each of ``points`` has ``rates``: stream tuples per second by contestant; ``contestants``: the
        raw times and counts; ``wrong`` and ``failed``: contestants without a rate, with reasons; ``beyond``: bytes used
        beyond the limit. ``skipped`` has the contestants that took part nowhere, ``limit`` the kind of memory limit,
        ``planned`` the number of planned points, and ``when`` the start time.
    """
    skipped = prepare(specs, directory, note)
    if all(name in skipped for spec in specs for name in spec.names):
        raise BenchError("; ".join(skipped.values()) or "no contestant can take part; see --only")
    parent = cgroup or own_parent()
    found: dict[str, Any] = {
        "points": [],
        "planned": len(specs),
        "skipped": skipped,
        "limit": said(parent),
        "machine": describe_machine(directory),
        "commit": code_version(),
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    for spec in specs:
        found["points"].append(_Match(spec, directory, parent, skipped, note).held())
        kept(found)
    return found


class _Racer:
    """The process of one contestant, seen from the parent process."""

    def __init__(self, name: str, task: Task, parent: Path | None, log: Path) -> None:
        self.name = name
        self.warm_up_seconds: list[float] = []
        self.seconds: list[float] = []
        self.before: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self.said: dict[str, Any] = {}
        self.trouble: str | None = None
        self.wrong: str | None = None
        self._log = log
        self._task = task
        self._group: MemoryGroup | None = None
        if parent is not None and contestant(name).bounded:
            self._group = MemoryGroup.make(parent, f"semistream-{os.getpid()}-{name}")
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "semistream_lab.benchmarks.tournament.contestant_process"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        if self._group is not None:
            self._group.add(self._process.pid)
        self._tell(name=name, task=asdict(task))

    def open(self) -> None:
        """Let the contestant open R, with its memory limit, after its rehearsal.

        Contestants rehearse in parallel, and open R one by one.
        """
        self._hear()
        bounded, more = contestant(self.name).bounded, self._task.allowed_bytes
        if self._group is not None and self.trouble is None:
            self.said["limit"] = self._group.limit(more)
        answer = self.ask(limit=more if bounded and self._group is None else None)
        if bounded:
            self.said = {"limit": answer.get("limit"), "allowed": more} | self.said

    @property
    def runs(self) -> bool:
        return self.trouble is None and self.wrong is None

    def ask(self, **order: Any) -> dict[str, Any]:
        """Send an order and return the answer."""
        self._tell(**order)
        return self._hear()

    def _tell(self, **order: Any) -> None:
        assert self._process.stdin is not None
        if self.trouble is not None:
            return
        # if the process has ended, the missing answer shows it
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        """Return an answer; a contestant that gives none, or an error, drops out."""
        if self.trouble is not None:
            return {}
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline() or "{}")
        if not answer:
            tail = " ".join(self._log.read_text().split()[-60:])
            self.trouble = f"ended with {self._process.wait()}: {tail}"
        elif "error" in answer:
            self.trouble = str(answer["error"])
            self.said["traceback"] = answer["traceback"]
        return answer

    def batch(self, file: Path, rows: int, right: Answer | None) -> float | None:
        """Let the contestant join a batch; return the seconds, or None if it has dropped out."""
        answer = self.ask(file=str(file), check=right is not None)
        if self.trouble is not None:
            return None
        self.last = answer
        if contestant(self.name).kind != "limit":
            if answer["rows"] != rows:
                self.wrong = f"gave {answer['rows']:,} rows, not {rows:,}"
            elif right is not None and answer["sum"] != right.sum:
                self.wrong = "gave rows that are not those of R and the stream"
        return float(answer["seconds"])

    def close(self) -> None:
        """End the process."""
        if not self.runs:
            self._process.kill()
        with contextlib.suppress(BrokenPipeError), self._process:
            pass  # leaving the context closes its pipes and waits
        self._process.wait()
        if self._group is not None:
            self._group.remove()

    def result(self, batches: int) -> dict[str, Any]:
        counts = self.last.get("counts", {})
        kind = contestant(self.name)
        sums = ("tuples", "hits", "looked_up", "pages", "reads", "io_seconds")
        found: dict[str, Any] = {"title": kind.title, "kind": kind.kind, "seconds": self.seconds}
        found |= {"warm_up_seconds": self.warm_up_seconds, "grew": self.last.get("grew"), **self.said}
        found |= {name: value for name, value in counts.items() if name not in sums}
        found |= {
            f"{name}_a_batch": (counts[name] - self.before.get(name, 0)) / max(1, batches)
            for name in sums
            if name in counts
        }
        if counts.get("tuples", 0) > self.before.get("tuples", 0) and "hits" in counts:
            done = counts["tuples"] - self.before.get("tuples", 0)
            found["hit_ratio"] = (counts["hits"] - self.before.get("hits", 0)) / done
        return found


class _Match:
    """One point."""

    def __init__(
        self, spec: PeerSpec, directory: Path, parent: Path | None, skipped: dict[str, str], note: Note
    ) -> None:
        self.spec = spec
        self.note = note
        self.parent = parent
        self.data = spec.data(directory)
        self.names = [name for name in spec.names if name not in skipped]
        self.task = Task(self.data, spec.memory_bytes(self.data), max(spec.sizes(self.data)), spec.exponent, spec.shape)

    def held(self) -> dict[str, Any]:
        racers: dict[str, _Racer] = {}
        with tempfile.TemporaryDirectory(dir=self.data.place, prefix=".batches-") as folder:
            files, sizes = [], []
            for number, batch in enumerate(self.spec.stream(self.data)):
                files.append(_written(Path(folder), number, batch))
                sizes.append(int(self.data.present(batch[KEY].to_numpy()).sum()))
            self.note("what is right", 0)
            right = {at: right_answer(_read(files[at]), self.data) for at in {0, len(files) - 1}}
            groups = list(_groups(self.names, self.task))
            for group in groups:
                racers |= self._taken_in_turns(group, files, sizes, right, Path(folder))
        found = {name: racers[name].result(self.spec.batches + 1) for name in self.names}
        rated = {name: racer for name, racer in racers.items() if racer.runs and racer.seconds}
        return {
            "rows": self.spec.rows,
            "memory": self.spec.memory,
            "zipf": self.spec.exponent,
            "batch": self.spec.batch_rows,
            "layout": self.spec.layout,
            "absent": self.spec.absent,
            "rates": {
                name: self.spec.batch_rows / max(1e-9, statistics.median(racer.seconds))
                for name, racer in rated.items()
            },
            "kinds": {name: contestant(name).kind for name in self.names},
            "shape": self.spec.shape,
            "memory_bytes": self.task.memory,
            "allowed_bytes": self.task.allowed_bytes,
            "row_bytes": self.data.width,
            "filled_with": sum(self.spec.sizes(self.data)[: -self.spec.batches - 1]),
            "wrong": {name: racer.wrong for name, racer in racers.items() if racer.wrong},
            "beyond": {
                name: found[name]["grew"] - self.task.allowed_bytes
                for name in rated
                if contestant(name).bounded and found[name]["grew"] > self.task.allowed_bytes
            },
            "failed": {name: racer.trouble for name, racer in racers.items() if racer.trouble},
            "contestants": found,
            "turns": groups,
            "spec": asdict(self.spec),
        }

    def _taken_in_turns(
        self, names: list[str], files: list[Path], sizes: list[int], right: dict[int, Answer], folder: Path
    ) -> dict[str, _Racer]:
        racers: dict[str, _Racer] = {}
        with ExitStack() as stack:
            for name in names:
                racers[name] = _Racer(name, self.task, self.parent, folder / f"{name}.log")
                stack.callback(racers[name].close)
            for racer in racers.values():
                self.note(f"opening {racer.name}", 0)
                racer.open()
            first = len(sizes) - self.spec.batches - 1
            for number, (file, rows) in enumerate(zip(files, sizes, strict=True)):
                turn = number % len(names)
                for name in names[turn:] + names[:turn]:
                    self._one_batch(racers[name], number, first, file, rows, right.get(number))
        return racers

    def _one_batch(self, racer: _Racer, number: int, first: int, file: Path, rows: int, right: Answer | None) -> None:
        if racer.runs:
            self.note(f"{'batch' if number >= first else 'warm-up'}: {racer.name}", 0)
            if number == first:
                racer.before = racer.last.get("counts", {})
            seconds = racer.batch(file, rows, right)
            if seconds is not None and right is None:
                (racer.seconds if number >= first else racer.warm_up_seconds).append(seconds)
        self.note("", 1)


def _groups(names: list[str], task: Task) -> Iterator[list[str]]:
    """Split contestants into groups whose processes fit into the machine's memory together."""
    free = 0.7 * available_bytes()
    group: list[str] = []
    taken = 0.0
    for name in names:
        whole = 0 if contestant(name).kind != "ideal" else 2 * task.data.nbytes
        needed = _PROCESS + task.allowed_bytes + whole
        if group and taken + needed > free:
            yield group
            group, taken = [], 0.0
        group.append(name)
        taken += needed
    if group:
        yield group


def _written(folder: Path, number: int, batch: pa.RecordBatch) -> Path:
    path = folder / f"{number}.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    return path


def _read(path: Path) -> pa.RecordBatch:
    with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
        return reader.get_batch(0)
