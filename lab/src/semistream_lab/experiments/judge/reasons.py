"""Reasons from counters: what a join did at a point, in words."""

from __future__ import annotations

from collections.abc import Sequence

from semistream.core.units import format_count
from semistream_lab.experiments.judge.outcome import Found, Outcome

__all__ = ["counted"]


def counted(outcome: Outcome, series: Sequence[str] = ()) -> str:
    """Describe what joins did at the first and the last point of their lines; empty if there are no counters.

    Three numbers decide a rate: the tuples that a read serves, the share of the stream that memory answers without a
    read, and the share of time spent reading. Together they show where a difference comes from.
    """
    parts = []
    for name in series or outcome.names():
        line = [found for facet in outcome.facets() for found in outcome.line(name, facet) if "counts" in found.record]
        ends = line if len(line) < 2 else [line[0], line[-1]]
        parts += [f"{name} at {found.x:g}: {_done(found)}" for found in ends]
    return f"Counted in the run: {'; '.join(parts)}." if parts else ""


def _done(found: Found) -> str:
    counts = found.record["counts"]
    reads = max(1, counts["reads"])
    pages, served = format_count(counts["pages_read"] / reads), format_count(counts["appended"] / reads)
    text = (
        f"a read of {pages} pages serves {served} waiting tuples, {found.record['io_share']:.0%} of the time is reads"
    )
    if found.record["hit_ratio"] > 0:
        text += f", {found.record['hit_ratio']:.0%} of the stream is answered from memory"
    if found.model:
        ratio = found.y / found.model
        text += f", {ratio - 1:+.1%} from the model" if 0.5 < ratio < 2.0 else f", {ratio:.2g} times the model"
    return text
