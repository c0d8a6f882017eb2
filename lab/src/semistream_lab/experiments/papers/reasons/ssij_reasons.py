"""Why SSIJ and MESHJOIN compare as they do: from counters, and from the models."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from semistream.core.units import format_count
from semistream.costs import Setting, costs_of, load_constants
from semistream.costs.basis.constants import DEFAULT
from semistream.workloads.keys.key_source import Shape
from semistream_lab.experiments.judge.outcome import Outcome
from semistream_lab.experiments.papers.ssij.ssij_setups import EQUAL_SSIJ, FILL, KEY_ROWS, MESH, table_two
from semistream_lab.experiments.spec import Workload

__all__ = ["NOTED", "at_the_papers_size", "fewer_keys", "memory_for_tuples", "no_favourites", "phases", "scan_speed"]

NOTED = "SSIJ, as published, its notes beside the memory"


def phases(outcome: Outcome, facet: str | None = None) -> str:
    """Explain what a join phase of SSIJ and a pass of MESHJOIN serve, and what each reads."""
    parts, results = [], 0.0
    facet = _last_facet(outcome) if facet is None else facet
    for name in (EQUAL_SSIJ, MESH):
        line = outcome.line(name, facet)
        for found in (line[0], line[-1]):
            counts = found.record["counts"]
            done = max(1, counts["rows_done"])
            pages, seeks = (1e3 * counts[what] / done for what in ("pages_read", "reads"))
            seconds = counts["io_seconds"] / done
            parts.append(f"{name} at {found.x:g}: {1e3 * seconds:.2g} s of reads per thousand tuples ({pages:,.0f} "
                         f"pages, {seeks:,.1f} seeks), {seconds * found.y:.0%} of the time")  # fmt: skip
            results = max(results, counts["rows_out"] / done)
    text = (
        f"{'; '.join(parts)}. A join phase begins with the number of tuples in Table II, even if memory would hold "
        "more. In MESHJOIN all tuples in memory share one pass over R."
    )
    if outcome.experiment.metric == "rate" and results > 10:
        most = 1e9 / (results * load_constants(DEFAULT).emit)
        text += (
            f" The rest of the time is mostly results, which cost both joins the same: with {results:,.0f} per tuple "
            f"neither can serve more than {format_count(most)} tuples/s."
        )
    return text


def _last_facet(outcome: Outcome) -> str:
    """Return the last panel with both joins at equal bytes, which have counters."""
    return [facet for facet in outcome.facets() if outcome.line(EQUAL_SSIJ, facet) and outcome.line(MESH, facet)][-1]


def at_the_papers_size(outcome: Outcome) -> str:
    """Explain what phases do, and what the models give for the paper's own R, memory and disk."""
    shape = outcome.experiment.samples[0].point.workload.shape
    line = outcome.line(EQUAL_SSIJ)
    found = {found.x: _papers_size(found.x / 100, shape) for found in (line[0], line[-1])}
    rates = "; ".join(
        f"{ssij / mesh:.2f}× at {x:g} %, {format_count(ssij)} and {format_count(mesh)} tuples/s"
        for x, (ssij, mesh) in found.items()
    )
    return (
        f"{phases(outcome)}{_notes_beside(outcome)} At the paper's own size, 80 M tuples and a seek of 8.5 ms, the "
        f"models give {rates}."
    )


def _notes_beside(outcome: Outcome, facet: str = "") -> str:
    """Explain how much of a ratio is due to SSIJ's records about the pages of R."""
    first, second = outcome.line(EQUAL_SSIJ, facet)[0], outcome.line(MESH, facet)[0]
    parts, budget = first.record["memory_parts"], first.record.get("budget")
    other = outcome.aside.get(f"{NOTED}, {facet}" if facet else NOTED)
    if not budget or other is None:
        return ""
    noted = sum(parts.get(name, 0) for name in ("page map", "read plan"))
    return (
        f" With {first.x:g} % memory, {parts.get('pages and tuples', 0) / budget:.0%} of it holds pages and tuples. "
        f"The index has {parts.get('index', 0) / budget:.0%}, as in the paper (13 MB for 10 GB). {noted / budget:.0%} "
        "is the map of R's pages and the plan of the next reads: with these two outside of the budget the ratio is "
        f"{other[outcome.experiment.metric] / second.y:.2f}× instead of {first.y / second.y:.2f}×."
    )


@functools.cache
def _papers_size(fraction: float, shape: Shape) -> tuple[float, float]:
    """Return modelled rates for an R of 10 GB, without results: SSIJ with Table II at skew 1, and MESHJOIN."""
    base = Workload(rows=80_000_000, row_bytes=128)
    constants, memory = dataclasses.replace(load_constants(DEFAULT), emit=0.0), int(fraction * base.nbytes)

    def setting(exponent: float) -> Setting:
        return Setting.planned(
            base.rows, base.row_bytes, fill=FILL, rows_per_key=KEY_ROWS, exponent=exponent, shape=shape,
            constants=constants,
        )  # fmt: skip

    ssij = costs_of("ssij").rate(setting(1.0), memory, **table_two(1.0, memory, base))
    return ssij, costs_of("meshjoin").rate(setting(0.0), memory, seek_pages=103.76)


def no_favourites(facet: str, why: str) -> Callable[[Outcome], str]:
    """Explain why SSIJ gains nothing without frequent pages, and how its memory is split."""

    def because(outcome: Outcome) -> str:
        first, last = outcome.line(EQUAL_SSIJ, facet)[0], outcome.line(EQUAL_SSIJ, facet)[-1]
        return (
            f"{phases(outcome, facet)} {why}: the cache answers {first.record['hit_ratio']:.1%} to "
            f"{last.record['hit_ratio']:.1%}, a join phase needs most pages of R, and MESHJOIN's pass is the cheapest "
            f"way to read them. The paper's own worst case (§V) is MESHJOIN's rate.{_notes_beside(outcome, facet)}"
        )

    return because


def memory_for_tuples(outcome: Outcome) -> str:
    """Explain why more memory does not reduce SSIJ's loss if no key is frequent, and the effect of the stream's end."""
    return (
        "With little memory a join phase begins with the tuples that fit, fewer than in Table II, and reads a large "
        "part of R for them. As soon as memory holds the tuples of Table II, additional memory only adds cached pages. "
        "Without skew these answer nothing, while in MESHJOIN ever more tuples share a pass."
        f"{_left_at_the_end(outcome)}"
    )


def _left_at_the_end(outcome: Outcome) -> str:
    """Return how much of the raised streams memory holds at most when they end."""
    raised = [sample for sample in outcome.experiment.samples if sample.point.task == "sustained"]
    if not raised:
        return ""
    parts = [
        f"{sample.point.options['input_limit'] / sample.point.settings['tuples']:.0%} ({sample.facet}, {sample.x:g} %)"
        for sample in raised
    ]
    return (
        " Where arrivals are raised, the tuples that memory holds when the stream ends need not be served, up to "
        f"{', '.join(parts)} of the stream. So more memory raises the rate even if phases serve no more tuples."
    )


def fewer_keys(outcome: Outcome) -> str:
    """Explain why more tuples per key do not help SSIJ."""
    line = outcome.line(EQUAL_SSIJ, _last_facet(outcome))
    parts = []
    for found in (line[0], line[-1]):
        counts = found.record["counts"]
        missed = max(1, counts["rows_done"] - counts["cache_hits"])
        parts.append(f"{found.record['hit_ratio']:.0%} at K = {found.x:g}, where each miss needs "
                     f"{counts['pages_read'] / missed:.2g} page reads")  # fmt: skip
    return (
        f"{scan_speed(outcome)} As K grows there are fewer keys, and the pages of the most frequent ones that fit into "
        f"memory answer less of a Zipf stream: {'; '.join(parts)}. A pass of MESHJOIN serves the same number of tuples "
        "at every K."
    )


def scan_speed(outcome: Outcome) -> str:
    """Explain what phases do, and how fast the paper's MESHJOIN would have to read R."""
    line = outcome.line(MESH, _last_facet(outcome))
    return (
        f"{phases(outcome)} The published MESHJOIN is slower than its own memory and disk allow: with 375 MB over "
        "5 GB (Figure 16) it holds 2.3 M tuples of 164 bytes, and 9 min of delay at 5500 tuples/s mean that one pass "
        "over R is a scan of 10 MB/s. Here R is read at 100 MB/s, and MESHJOIN serves "
        f"{format_count(line[0].y)} tuples/s."
    )
