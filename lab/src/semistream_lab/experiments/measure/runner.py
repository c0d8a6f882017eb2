"""Measures the points of experiments that have no result yet, in a few processes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semistream_lab.experiments.experiment import Experiment
from semistream_lab.experiments.measure.machine_costs import constants_of
from semistream_lab.experiments.measure.store import Store, code_version
from semistream_lab.experiments.spec import DeviceKind, Point

__all__ = ["Progress", "Summary", "plan", "run"]

Record = dict[str, Any]
Progress = Callable[[Point, Record, float], None]


@dataclass
class Summary:
    """Counts of a run."""

    measured: int = 0
    kept: int = 0
    seconds: float = 0.0
    failures: list[tuple[Point, str]] = field(default_factory=list)


def plan(experiments: Iterable[Experiment], store: Store, *, any_version: bool = False) -> tuple[list[Point], int]:
    """Return the points to measure, the longest first, and how many already have a result."""
    known = store.results(None if any_version else code_version())
    wanted = {
        sample.point.digest(): sample.point for experiment in experiments for sample in experiment.samples
    }  # fmt: skip
    missing = [point for name, point in wanted.items() if name not in known or "error" in known[name]]
    return sorted(missing, key=_effort, reverse=True), len(wanted) - len(missing)


def _effort(point: Point) -> float:
    """Return the estimated effort of a point, without a unit."""
    pages = point.workload.rows / 64
    work = pages * (point.windows * point.passes + point.warm_passes) * point.workload.rows_per_key
    return point.memory / 50 + work


def run(
    points: list[Point],
    store: Store,
    *,
    workers: int = 2,
    progress: Progress | None = None,
) -> Summary:
    """Measure points and append their results as they are ready.

    A failed point is recorded; the others continue.
    """
    summary, began = Summary(), time.perf_counter()
    if points:
        constants_of(store.device, store.data)  # measure them before other processes run

    def keep(point: Point, record: Record, seconds: float) -> None:
        store.append(point, record, seconds)
        summary.measured += 1
        if "error" in record:
            summary.failures.append((point, str(record["error"])))
        if progress is not None:
            progress(point, record, seconds)

    # points that are timed by the real clock are measured last, one at a time
    alone = [point for point in points if point.task == "database"]
    together = [point for point in points if point.task != "database"]
    if workers <= 1:
        alone, together = together + alone, []
    if together:
        _in_processes(together, store.device, store.data, workers, keep)
    for point in alone:
        keep(point, *_attempt(point, store.device, store.data))
    summary.seconds = time.perf_counter() - began
    return summary


def _in_processes(
    points: list[Point],
    device: DeviceKind,
    directory: Path,
    workers: int,
    keep: Callable[[Point, Record, float], None],
) -> None:
    # spawn: a forked process would inherit locks that other threads hold
    context = multiprocessing.get_context("spawn")
    waiting = iter(points)
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        running: dict[Future[tuple[Record, float]], Point] = {}
        try:
            while True:
                # submit few at a time, so that an interruption does not wait for a long queue
                while len(running) < workers and (point := next(waiting, None)) is not None:
                    running[pool.submit(_attempt, point, device, directory)] = point
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    keep(running.pop(future), *future.result())
        finally:
            for future in running:
                future.cancel()


def _attempt(point: Point, device: DeviceKind, directory: Path) -> tuple[Record, float]:
    from semistream_lab.experiments.measure.tasks import measure

    began, processor = time.perf_counter(), time.process_time()
    try:
        record = measure(point, device, directory)
    except Exception as error:
        record = {"error": f"{type(error).__name__}: {error}"}
    record["processor_seconds"] = round(time.process_time() - processor, 2)
    return record, time.perf_counter() - began
