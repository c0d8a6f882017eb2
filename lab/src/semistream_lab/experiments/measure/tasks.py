"""The tasks that measure points: each turns a `Point` into a record of numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from semistream.workloads.keys.zipf import ZipfLaw
from semistream_lab.experiments.confidence import interval
from semistream_lab.experiments.measure.both_sides import key_source, open_sides
from semistream_lab.experiments.measure.database_rates import join_rate
from semistream_lab.experiments.measure.driven import highest_rate, late_tuples, time_of_burst
from semistream_lab.experiments.measure.machine_costs import constants_of, pace
from semistream_lab.experiments.measure.timed import TimedRun, arrivals_of
from semistream_lab.experiments.measure.windows import Run
from semistream_lab.experiments.spec import DeviceKind, Point

__all__ = ["measure", "tasks"]

Record = dict[str, Any]
Task = Callable[[Point, DeviceKind, Path], Record]


def measure_rate(point: Point, device: DeviceKind, directory: Path) -> Record:
    """Service rate with a stream that never runs dry."""
    sides = open_sides(point.workload, device, directory, point.seek_seconds)
    with sides.relation:
        run = Run(point, sides, constants_of(device, directory))
        other: Record = {} if run.simulated else {"pace": pace()}
        warm = run.warm_up()
        windows = list(run.windows())
        rates = [window.rate for window in windows]
        if not run.simulated:
            other["spoilt"] = run.spoilt
        done = windows[-1].done
        total = {
            name: sum(getattr(window.done, name) for window in windows)
            for name in (
                "rows_in", "rows_out", "rows_done", "cache_hits", "probes", "appended", "evicted", "recorded",
                "buffered", "pages_read", "reads", "io_seconds", "steps",
            )
        }  # fmt: skip
        seconds = sum(window.seconds for window in windows)
        if run.simulated:
            found, model = run.counting(windows)
            mean = sum(found) / len(found)
            other |= {"counting": mean, "counting_interval": interval(found), "counting_model": model}
        return {
            **other,
            "rate": total["rows_done"] / seconds,
            "interval": interval(rates),
            "windows": rates,
            "seconds": seconds,
            "warm_up_rows": warm,
            "counts": total,
            # tuples that X-HYBRIDJOIN's pinned part serves in 4000 reads, as in its paper
            "pinned_tuples": 4000.0 * total["cache_hits"] / max(1, total["reads"]),
            "hit_ratio": total["cache_hits"] / max(1, total["rows_done"]),
            "io_share": total["io_seconds"] / seconds if seconds else 0.0,
            "model": run.predicted(),
            "options": dict(run.options),
            "budget": run.memory,
            "memory_parts": run.join.budget.parts(),
            "waiting_bytes": run.setting.waiting_bytes,
            "steps": done.steps,
        }


def measure_delays(point: Point, device: DeviceKind, directory: Path) -> Record:
    """Processing and waiting time of tuples that arrive at a rate."""
    if device == "real":
        return {"skipped": "delays are measured on the simulated device only, where arrivals follow its clock"}
    sides = open_sides(point.workload, device, directory, point.seek_seconds)
    with sides.relation:
        run = TimedRun(point, sides, arrivals_of(point.settings, point.workload.seed))
        tuples = int(point.settings["tuples"])
        delays = run.play(tuples)
        # after the beginning, and early enough before the end for all tuples to be served
        first, last = point.settings.get("window", (0.25, 0.5))
        window = slice(int(tuples * first), int(tuples * last))
        parts = np.array_split(np.arange(tuples)[window], point.windows)
        record: Record = {"busy_seconds": run.busy, "virtual_seconds": run.now, "options": dict(run.options)}
        for name, values in (
            ("total", delays.total), ("processing", delays.processing), ("waiting", delays.waiting)
        ):  # fmt: skip
            served = [values[part][~np.isnan(values[part])] for part in parts]
            means = [float(part.mean()) for part in served if part.size] or [0.0]
            record |= {name: sum(means) / len(means), f"{name}_interval": interval(means)}
        record["served"] = float(np.mean(~np.isnan(delays.total[window])))
        record["longest"] = run.longest(delays, window)
        return record


def measure_page_use(point: Point, device: DeviceKind, directory: Path) -> Record:
    """Number of stream tuples that use a segment of R. A segment has ``segment_pages`` pages."""
    sides = open_sides(point.workload, device, directory, point.seek_seconds)
    with sides.relation:
        tuples, pages = int(point.settings["tuples"]), int(point.settings["segment_pages"])
        segment = int(point.settings["segment"])
        counts = []
        for at in range(point.windows):
            keys = sides.keys.keys(at * tuples, tuples)
            located = sides.relation.locate(keys).pages // pages
            counts.append(float(np.count_nonzero(located == segment)))
        return {"uses": sum(counts) / len(counts), "uses_interval": interval(counts)}


def measure_sales(point: Point, device: DeviceKind, directory: Path) -> Record:
    """Share of the stream that belongs to the most frequent products."""
    keys = key_source(point.workload, directory).keys(0, int(point.settings["tuples"]))
    sold = np.sort(np.bincount(keys, minlength=point.workload.rows))[::-1]
    top = max(1, int(point.settings["top"] * point.workload.rows))
    law = ZipfLaw(point.workload.rows, point.workload.exponent)
    return {"share": float(sold[:top].sum() / sold.sum()), "share_model": law.share(top)}


def measure_bursts(point: Point, device: DeviceKind, directory: Path) -> Record:
    """Variance of the tuples per interval, divided by their mean: 1 if tuples arrive independently."""
    width, intervals = float(point.settings["width"]), int(point.settings["intervals"])
    counts = arrivals_of(point.settings, point.workload.seed).counts(width, intervals).astype(np.float64)
    parts = [float(part.var(ddof=1) / part.mean()) for part in np.array_split(counts, point.windows)]
    return {"dispersion": float(counts.var(ddof=1) / counts.mean()), "dispersion_interval": interval(parts)}


def measure_sustained(point: Point, device: DeviceKind, directory: Path) -> Record:
    """Highest constant arrival rate at which all tuples find room and meet their deadlines, if any."""
    if device == "real":
        return {"skipped": "arrivals follow the clock of the simulated device"}
    return highest_rate(point, directory)


def measure_kept_deadlines(point: Point, device: DeviceKind, directory: Path) -> Record:
    """Number of late tuples at a given rate."""
    if device == "real":
        return {"skipped": "arrivals follow the clock of the simulated device"}
    return late_tuples(point, directory)


def measure_burst(point: Point, device: DeviceKind, directory: Path) -> Record:
    """Seconds for which arrivals above the nominal rate find room."""
    if device == "real":
        return {"skipped": "arrivals follow the clock of the simulated device"}
    return time_of_burst(point, directory)


def measure_database(point: Point, device: DeviceKind, directory: Path) -> Record:
    """An index join of a database, or SSIJ on the same data, on this machine's disk and clock."""
    return join_rate(point, directory)


tasks: dict[str, Task] = {
    "sustained": measure_sustained,
    "kept deadlines": measure_kept_deadlines,
    "burst": measure_burst,
    "database": measure_database,
    "rate": measure_rate,
    "delays": measure_delays,
    "page use": measure_page_use,
    "sales": measure_sales,
    "bursts": measure_bursts,
}


def measure(point: Point, device: DeviceKind, directory: Path) -> Record:
    """Measure one point."""
    return tasks[point.task](point, device, directory)
