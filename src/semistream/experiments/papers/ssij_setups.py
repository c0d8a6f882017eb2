"""What experiments of the SSIJ paper share: its relations, and points of SSIJ and MESHJOIN on them."""

from __future__ import annotations

from semistream.experiments.scales import Size
from semistream.experiments.spec import Point, Workload

__all__ = [
    "FILL", "LESS", "PAPER", "PUBLISHED", "SHORTER",
    "index_join", "locality", "mesh", "published_thresholds", "relation", "share", "three",
]  # fmt: skip

PAPER = "SSIJ"
PUBLISHED = "MESHJOIN, published bytes"
LESS = (
    "R, memory and the seek of the disk are a tenth of the paper's, so that all proportions are the paper's: a pass of "
    "SSIJ over 80 M tuples takes tens of millions of stream tuples."
)
FILL = 0.8
SHORTER = (
    "R, memory, intervals, thresholds and the seek of the disk are a fortieth of the paper's: a measurement takes "
    "several intervals."
)


def share(size: Size) -> float:
    """Return how large R is, of the paper's."""
    return size.pick(0.1, 0.0125, 0.025)


def relation(
    size: Size, exponent: float = 1.0, shape: str = "noperm", rows_per_key: int = 1, fill: float = FILL
) -> Workload:
    """Return R of 10 GB, or less, in pages that leave room for updates."""
    return Workload(
        rows=int(80_000_000 * share(size)), row_bytes=128, exponent=exponent, rows_per_key=rows_per_key, fill=fill,
        shape="noperm" if shape == "noperm" else "random",
    )  # fmt: skip


def seek(size: Size) -> float:
    """Return the seconds of a seek, which shrink with a simulated R."""
    return 0.0085 * share(size) if size.simulated else 0.0085


def index_join(size: Size, workload: Workload, memory: float) -> Point:
    """Return a point of SSIJ: a window is a join phase."""
    return Point(
        workload=workload, algorithm="ssij", memory=int(memory), tuned=workload.kind == "zipf",
        windows=size.pick(4, 2, 5), warm_passes=2.0,
        probes=size.pick(8_000_000, 600_000, 1 << 40), seek_seconds=seek(size),
    )  # fmt: skip


def mesh(size: Size, workload: Workload, memory: float, *, published: bool = False) -> Point:
    """Return a point of MESHJOIN.

    ``published`` takes as much from its budget that it holds as many tuples as with the bytes its authors state: eight
    times the tuple in the hash table and four for the queue, where ours takes 38 beside the tuple itself.
    """
    if published:
        memory *= (workload.stream_bytes + 38) / (8 * workload.stream_bytes + 4)
    options = {"seek_pages": round(seek(size) / (8192 / 100e6), 2)} if size.simulated else {}
    return Point(
        workload=workload, algorithm="meshjoin", memory=int(memory), options=options, windows=3,
        passes=size.pick(0.05, 0.2, 0.2), seek_seconds=seek(size),
    )  # fmt: skip


def three(size: Size, workload: Workload, memory: float) -> list[tuple[str, Point]]:
    """Return SSIJ and both MESHJOINs on one workload."""
    return [
        ("SSIJ", index_join(size, workload, memory)),
        ("MESHJOIN", mesh(size, workload, memory)),
        (PUBLISHED, mesh(size, workload, memory, published=True)),
    ]


def locality(size: Size) -> Workload:
    """Return R, a fortieth of the paper's or less, whose stream asks for one twentieth of it after another."""
    part = size.pick(0.025, 0.005, 0.0125)
    return Workload(
        kind="locality", rows=int(80_000_000 * part), row_bytes=128, rows_per_key=16, fill=0.8,
        interval_rows=int(2_000_000 * part),
    )  # fmt: skip


def published_thresholds(part: float, memory: float, workload: Workload) -> dict[str, object]:
    """Return the thresholds of the paper's Table II for an R that is ``part`` of the paper's."""
    buffer = 400_000 if memory <= 0.015 * workload.nbytes else 1_000_000
    return {"input_tuples": int(250_000 * part), "buffer_tuples": int(buffer * part)}
