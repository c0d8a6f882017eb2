"""TPC-H tables and weather reports, which two of the papers join."""

from __future__ import annotations

from semistream_lab.experiments.scales import Size
from semistream_lab.experiments.spec import Workload

__all__ = ["line_items", "many_reports", "orders", "reports"]


def orders(size: Size) -> Workload:
    """Return Orders with Customer, of CMESHJOIN's paper."""
    factor = size.pick(100.0, 1.0, 2.0)
    # stored rows of Customer are 180 bytes on average
    return Workload(
        kind="tpch-orders", rows=int(150_000 * factor), row_bytes=180, exponent=0.0, shape="random", scale_factor=factor
    )


def many_reports(size: Size) -> Workload:
    """Return the weather reports of CMESHJOIN's paper, at their published number."""
    return Workload(
        kind="weather", rows=size.pick(20_000_000, 400_000, 1_000_000), row_bytes=128, stream_bytes=128,
        rows_per_key=size.pick(555, 11, 28), exponent=0.0, shape="random",
    )  # fmt: skip


def line_items(size: Size, fill: float) -> Workload:
    """Return LineItem with Part, of SSIJ's paper, in pages that leave room for updates."""
    factor = size.pick(10.0, 1.0, 2.0)
    return Workload(
        kind="tpch-lineitem", rows=int(200_000 * factor), row_bytes=155, exponent=0.0, shape="random",
        scale_factor=factor, fill=fill,
    )  # fmt: skip


def reports(size: Size, fill: float) -> Workload:
    """Return the weather reports of SSIJ's paper, a fifth of their published number."""
    return Workload(
        kind="weather", rows=size.pick(4_000_000, 200_000, 1_000_000), row_bytes=128, stream_bytes=128, exponent=0.0,
        rows_per_key=size.pick(111, 5, 28), shape="random", fill=fill,
    )  # fmt: skip
