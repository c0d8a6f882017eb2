"""What experiments of the SSIJ paper share: its relations, and points of SSIJ and MESHJOIN on them."""

from __future__ import annotations

from typing import Any

from semistream_lab.experiments.scales import Size
from semistream_lab.experiments.spec import PAGE_BYTES, Point, Taken, Workload

__all__ = [
    "AUTHORS", "BYTES", "FILL", "KEY_ROWS", "LESS", "MESH", "PAPER", "SHORTER", "SSIJ", "TUNED_SSIJ", "beside",
    "contestants", "index_join", "locality", "mesh", "published_join", "relation", "seek", "share", "table_two",
]  # fmt: skip

PAPER = "SSIJ"
SSIJ, TUNED_SSIJ = "SSIJ, as published", "SSIJ, tuned"
MESH, AUTHORS = "MESHJOIN", "MESHJOIN, its authors' bytes"
LESS = (
    "R, memory, thresholds, maxScan and the seek of the disk are a twentieth of the paper's, so that passes, buffers "
    "and runs keep their proportion. As published: Table II, all utility cleared after a join phase. Tuned: thresholds "
    "that our cost model finds best."
)
BYTES = Taken(
    "bytes of a tuple", "those of our own structures for both joins, about 80 waiting in SSIJ and 58 in MESHJOIN",
    "since the paper gives none for SSIJ; MESHJOIN with its authors' 164 is drawn beside",
)  # fmt: skip
FILL = 0.8
KEY_ROWS = 320
"""Tuples of R for each key: 80 M of them have 250 000 keys (Table II)."""
SHORTER = (
    "R, memory, intervals, thresholds and the seek of the disk are a fortieth of the paper's: a measurement takes "
    "several intervals."
)


def share(size: Size) -> float:
    """Return how large R is, of the paper's."""
    return size.pick(0.05, 0.0125, 0.025)


def relation(
    size: Size, exponent: float = 1.0, shape: str = "noperm", rows_per_key: int = KEY_ROWS, fill: float = FILL
) -> Workload:
    """Return R of 10 GB, or less, in pages that leave room for updates."""
    return Workload(
        rows=int(80_000_000 * share(size)), row_bytes=128, exponent=exponent, rows_per_key=rows_per_key, fill=fill,
        # keys that are all alike are so in any order: both shapes are one measurement then
        shape="noperm" if shape == "noperm" or exponent == 0.0 else "random",
    )  # fmt: skip


def seek(size: Size, part: float | None = None) -> float:
    """Return the seconds of a seek, which shrink with a simulated R: it is ``part`` of the paper's."""
    return 0.0085 * (part or share(size)) if size.simulated else 0.0085


def table_two(part: float, memory: float, workload: Workload) -> dict[str, Any]:
    """Return the parameters of the paper's Table II for an R that is ``part`` of the paper's."""
    buffer = 400_000 if memory <= 0.015 * workload.nbytes else 1_000_000
    return {
        "input_tuples": max(16, int(250_000 * part)), "buffer_tuples": max(16, int(buffer * part)),
        "max_scan": max(2, int(200 * part)), "utility_kept": 0.0,
    }  # fmt: skip


def published_join(size: Size, workload: Workload, memory: float, part: float | None = None, **options: Any) -> Point:
    """Return a point of SSIJ with the parameters of Table II for a ``part`` of R: a window is a join phase."""
    return Point(
        workload=workload, algorithm="ssij", memory=int(memory),
        options={**table_two(part or share(size), memory, workload), **options},
        windows=size.pick(4, 2, 5), warm_passes=size.pick(3.0, 2.0, 2.0),
        probes=size.pick(1_000_000, 300_000, 1 << 40), seek_seconds=seek(size, part),
    )  # fmt: skip


def beside(size: Size, workload: Workload, memory: float, part: float | None = None) -> Point:
    """Return that point with the map of R's pages and the read plan beside the memory: 8 bytes a page hold both."""
    return published_join(size, workload, memory + 8 * workload.nbytes / (PAGE_BYTES * FILL), part)


def index_join(size: Size, workload: Workload, memory: float, part: float | None = None, **options: Any) -> Point:
    """Return a point of SSIJ, its thresholds chosen by the cost model."""
    return Point(
        workload=workload, algorithm="ssij", memory=int(memory), tuned=workload.kind != "locality", options=options,
        windows=size.pick(2, 2, 5), warm_passes=2.0,
        probes=size.pick(3_000_000, 600_000, 1 << 40), seek_seconds=seek(size, part),
    )  # fmt: skip


def mesh(size: Size, workload: Workload, memory: float, part: float | None = None, *, authors: bool = False) -> Point:
    """Return a point of MESHJOIN; with the bytes that its authors state, eight times a tuple and four for the queue."""
    options = {"seek_pages": round(seek(size, part) / (PAGE_BYTES / 100e6), 2)} if size.simulated else {}
    settings = {"bytes": {"waiting": 8.0 * workload.stream_bytes + 4}} if authors else {}
    return Point(
        workload=workload, algorithm="meshjoin", memory=int(memory), options=options, settings=settings, windows=3,
        passes=size.pick(0.05, 0.2, 0.2), seek_seconds=seek(size, part),
    )  # fmt: skip


def contestants(size: Size, workload: Workload, memory: float, part: float | None = None) -> list[tuple[str, Point]]:
    """Return SSIJ in both settings, and both MESHJOINs, on one workload, whose R is ``part`` of the paper's."""
    return [
        (SSIJ, published_join(size, workload, memory, part)),
        (TUNED_SSIJ, index_join(size, workload, memory, part)),
        (MESH, mesh(size, workload, memory, part)),
        (AUTHORS, mesh(size, workload, memory, part, authors=True)),
    ]


def locality(size: Size) -> Workload:
    """Return R, a fortieth of the paper's or less, whose stream asks for one twentieth of it after another."""
    part = size.pick(0.025, 0.005, 0.0125)
    return Workload(
        kind="locality", rows=int(80_000_000 * part), row_bytes=128, rows_per_key=16, fill=0.8,
        interval_rows=int(2_000_000 * part),
    )  # fmt: skip
