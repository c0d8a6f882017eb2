"""Shared by experiments of the SSIJ paper: its relations, and points of SSIJ and MESHJOIN on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from semistream_lab.experiments.scales import Size
from semistream_lab.experiments.spec import PAGE_BYTES, Point, Taken, Workload

__all__ = [
    "AUTHORS", "BYTES", "EQUAL_SSIJ", "FILL", "KEY_ROWS", "LESS", "MESH", "PAPER", "SHORTER", "SSIJ", "TUNED_MESH",
    "TUNED_SSIJ", "beside", "bytes_of_table_two", "contestants", "index_join", "locality", "mesh", "published_join",
    "raised", "relation", "seek", "share", "table_two",
]  # fmt: skip

PAPER = "SSIJ"
SSIJ, EQUAL_SSIJ, TUNED_SSIJ = "SSIJ, as published", "SSIJ, equal bytes", "SSIJ, tuned"
AUTHORS, MESH, TUNED_MESH = "MESHJOIN, as published", "MESHJOIN, equal bytes", "MESHJOIN, tuned"
INPUT_BYTES = 40
"""Bytes that a stream tuple of 20 bytes takes in SSIJ until it is looked up."""
LESS = (
    "R, memory, thresholds, maxScan and the seek time of the disk are a twentieth of the paper's, so passes, buffers "
    "and runs keep their proportion. As published: Table II, all utility cleared after a join phase. Tuned: the "
    "thresholds that our cost model finds best."
)
BYTES = Taken(
    "bytes of a stream tuple", "20, which take 40 in SSIJ until they are looked up and about 80 while they wait; in "
    "MESHJOIN they take 164 as published, by its authors' formula, and 58 with our structures",
    "because the paper gives none; 375 MB, 5500 tuples/s and 9 min (Figure 16) imply about 126 in its MESHJOIN",
)  # fmt: skip
FILL = 0.8
KEY_ROWS = 320
"""Tuples of R per key: 80 M tuples have 250 000 keys (Table II)."""
SHORTER = (
    "R, memory, intervals, thresholds and the seek time of the disk are a fortieth of the paper's, because a "
    "measurement needs several intervals."
)


def share(size: Size) -> float:
    """Return the size of R as a share of the paper's."""
    return size.pick(0.05, 0.0125, 0.025)


def relation(
    size: Size, exponent: float = 1.0, shape: str = "noperm", rows_per_key: int = KEY_ROWS, fill: float = FILL
) -> Workload:
    """Return the paper's R of 10 GB, scaled to the size, in pages that leave room for updates."""
    return Workload(
        rows=int(80_000_000 * share(size)), row_bytes=128, exponent=exponent, rows_per_key=rows_per_key, fill=fill,
        # with uniform keys the order in R does not matter: both shapes are one measurement
        shape="noperm" if shape == "noperm" or exponent == 0.0 else "random",
    )  # fmt: skip


def seek(size: Size, part: float | None = None) -> float:
    """Return the seconds of a seek.

    On the simulated disk it is scaled like R, which is ``part`` of the paper's.
    """
    return 0.0085 * (part or share(size)) if size.simulated else 0.0085


def table_two(part: float, memory: float, workload: Workload) -> dict[str, Any]:
    """Return the parameters of the paper's Table II for an R that is ``part`` of the paper's."""
    buffer = 400_000 if memory <= 0.015 * workload.nbytes else 1_000_000
    return {
        "input_tuples": max(16, int(250_000 * part)), "buffer_tuples": max(16, int(buffer * part)),
        "max_scan": max(2, int(200 * part)), "utility_kept": 0.0,
    }  # fmt: skip


def bytes_of_table_two(table: Mapping[str, Any], stream_bytes: int) -> int:
    """Return the tuples' own bytes, without any pointer, when a join phase begins with the thresholds of Table II."""
    return int((table["input_tuples"] + table["buffer_tuples"]) * stream_bytes)


def _that_fit(table: dict[str, Any], memory: float, workload: Workload) -> dict[str, Any]:
    """Return Table II without its thresholds if that many tuples are larger than the memory.

    The join then begins a phase with the tuples that half of its memory holds, and looks up a tenth together.
    """
    if bytes_of_table_two(table, workload.stream_bytes) <= memory:
        return table
    return {name: value for name, value in table.items() if name not in ("input_tuples", "buffer_tuples")}


def published_join(size: Size, workload: Workload, memory: float, part: float | None = None, **options: Any) -> Point:
    """Return a point of SSIJ with the parameters of Table II for a ``part`` of R. A window is a join phase."""
    return Point(
        workload=workload, algorithm="ssij", memory=int(memory),
        options={**table_two(part or share(size), memory, workload), **options},
        windows=size.pick(4, 2, 5), warm_passes=size.pick(3.0, 2.0, 2.0),
        probes=size.pick(1_000_000, 300_000, 1 << 40), seek_seconds=seek(size, part),
    )  # fmt: skip


def beside(size: Size, workload: Workload, memory: float, part: float | None = None) -> Point:
    """Return the point of `published_join` with 8 more bytes of memory per page, for R's page map and the read plan."""
    return published_join(size, workload, memory + 8 * workload.nbytes / (PAGE_BYTES * FILL), part)


def index_join(size: Size, workload: Workload, memory: float, part: float | None = None, **options: Any) -> Point:
    """Return a point of SSIJ with the thresholds that the cost model chooses."""
    return Point(
        workload=workload, algorithm="ssij", memory=int(memory), tuned=workload.kind != "locality", options=options,
        windows=size.pick(2, 2, 5), warm_passes=2.0,
        probes=size.pick(3_000_000, 600_000, 1 << 40), seek_seconds=seek(size, part),
    )  # fmt: skip


def mesh(size: Size, workload: Workload, memory: float, part: float | None = None, *, authors: bool = False) -> Point:
    """Return a point of MESHJOIN. ``authors``: with its authors' bytes, eight times a tuple and four for the queue."""
    options = {"seek_pages": round(seek(size, part) / (PAGE_BYTES / 100e6), 2)} if size.simulated else {}
    settings = {"bytes": {"waiting": 8.0 * workload.stream_bytes + 4}} if authors else {}
    return Point(
        workload=workload, algorithm="meshjoin", memory=int(memory), options=options, settings=settings, windows=3,
        passes=size.pick(0.05, 0.2, 0.2), seek_seconds=seek(size, part),
    )  # fmt: skip


def raised(
    size: Size, workload: Workload, memory: float, between: tuple[float, float], *, stream: float = 20e6,
    part: float | None = None, trials: int = 6,
) -> Point:  # fmt: skip
    """Return SSIJ measured as in the paper: arrivals are raised until memory overflows before the stream ends.

    ``stream`` is the number of tuples in the paper's stream, ``trials`` the steps of a bisection. Results are counted,
    as for MESHJOIN. Thresholds that memory cannot hold are not used: with them memory overflows at any rate.
    """
    made = published_join(size, workload, memory, part)
    settings = {
        "tuples": int(stream * (part or share(size))), "between": list(between), "trials": size.pick(trials, 4, trials),
        "counted": True,
    }  # fmt: skip
    limit = int(memory / (INPUT_BYTES - 20 + workload.stream_bytes))
    options = {"input_limit": limit, **_that_fit(made.options, memory, workload)}
    return dataclasses.replace(made, task="sustained", settings=settings, options=options)


def contestants(size: Size, workload: Workload, memory: float, part: float | None = None) -> list[tuple[str, Point]]:
    """Return both joins with equal bytes and tuned, and MESHJOIN as published, on a ``part`` of the paper's R."""
    ours = mesh(size, workload, memory, part)
    return [
        (EQUAL_SSIJ, published_join(size, workload, memory, part)),
        (MESH, ours),
        (TUNED_SSIJ, index_join(size, workload, memory, part)),
        (TUNED_MESH, ours),
        (AUTHORS, mesh(size, workload, memory, part, authors=True)),
    ]


def locality(size: Size) -> Workload:
    """Return an R of at most 1/40 of the paper's, and a stream that uses one twentieth of R after another."""
    part = size.pick(0.025, 0.005, 0.0125)
    return Workload(
        kind="locality", rows=int(80_000_000 * part), row_bytes=128, rows_per_key=16, fill=0.8,
        interval_rows=int(2_000_000 * part),
    )  # fmt: skip
