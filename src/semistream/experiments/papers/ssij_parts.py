"""SSIJ §VI-D: what its parts and parameters do, Figures 10 to 15."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from semistream.core.units import format_count
from semistream.experiments.experiment import Claim, Experiment
from semistream.experiments.judge.claims import SIGNIFICANTLY, Judge, above, ends_below, rises, rises_then_falls
from semistream.experiments.judge.outcome import Found, Outcome
from semistream.experiments.papers.cmesh import MEMORY, RATE
from semistream.experiments.papers.settings import both_settings
from semistream.experiments.papers.ssij_setups import (
    KEY_ROWS,
    LESS,
    PAPER,
    SHORTER,
    index_join,
    locality,
    published_join,
    relation,
    share,
    table_two,
)
from semistream.experiments.scales import Size
from semistream.experiments.spec import Axis, Point, Sample, Taken, Verdict
from semistream.joins.ssij.ssij_layout import READ_EXTRA

__all__ = ["experiments"]

DYNAMIC = "dynamic memory"
_SPLITS: dict[str, dict[str, object]] = {
    DYNAMIC: {},
    "70 % for pages": {"cache_share": 0.7},
    "50 % for pages": {"cache_share": 0.5},
    "20 % for pages": {"cache_share": 0.2},
    "no cache": {"replacement": "none"},
}
OVERFLOW, ENDLESS = "arrivals raised until memory overflows", "service rate of an endless stream"


def experiments(size: Size) -> list[Experiment]:
    """Describe the experiments."""
    return [_dynamic(size), _replacement(size), *_thresholds(size), _fill(size)]


def _dynamic(size: Size) -> Experiment:
    workload = locality(size)
    fractions = size.pick([0.01, 0.025, 0.1], [0.05, 0.1], [0.025, 0.1])
    seek = 0.0085 * workload.rows / 80e6 if size.simulated else 0.0085

    def point(part: float, options: dict[str, object]) -> Point:
        memory = part * workload.nbytes
        table = table_two(workload.rows / 80e6, memory, workload)
        return Point(
            workload=workload, algorithm="ssij", memory=int(memory), options={**table, **options},
            windows=size.pick(3, 2, 5), passes=20.0, warm_passes=10.0, probes=size.pick(2_000_000, 400_000, 1 << 40),
            seek_seconds=seek,
        )  # fmt: skip

    def driven(part: float, options: dict[str, object]) -> Point:
        made = point(part, options)
        # as in the paper, the stream is over after 20 intervals, and what memory holds of it then need not be served
        settings = {"tuples": 20 * workload.interval_rows, "between": [1e4, 1e6], "trials": 6}
        limit = int((1.0 - float(str(options.get("cache_share", 0.0)))) * made.memory / 40)  # what tuples may take
        return dataclasses.replace(
            made, task="sustained", settings=settings, options={"input_limit": limit, **made.options}
        )

    return Experiment(
        id="ssij-10", paper=PAPER, figure="Figure 10", title="Memory that moves, and memory that does not",
        setup=f"R {workload.rows / 1e6:g} M tuples, 16 of a key; the stream asks for one twentieth of R after another.",
        x=MEMORY, y=RATE,
        samples=(
            *(Sample(name, 100 * part, driven(part, dict(options)), facet=OVERFLOW, metric="sustained")
              for part in fractions for name, options in _SPLITS.items() if size.simulated),
            *(Sample(name, 100 * part, point(part, dict(options)), facet=ENDLESS)
              for part in fractions for name, options in _SPLITS.items()),
        ),
        claims=(
            Claim("More memory for pages is better: 70 % above 50 % above 20 % above none.", "increasing throughput",
                  **_both_ways(size, lambda facet: above(*list(_SPLITS)[1:], facets=(facet,), because=_few_tuples))),
            Claim("Dynamic memory is above every fixed split and above no cache.", "significantly higher",
                  **_both_ways(size, lambda facet: above(*_SPLITS, of_all=True, facets=(facet,), factor=SIGNIFICANTLY,
                                                        because=_same_reads))),
            Claim("The gain of dynamic memory grows with memory.", "increases with memory",
                  **_both_ways(size, _gain_grows)),
        ),
        modelled=False,
        notes=f"{SHORTER} As published: the highest constant arrival rate at which memory does not overflow before the "
        "stream is over, all of the join's memory beside what it needs free for tuples that come in a join phase."
        if size.published else "",
    )  # fmt: skip


def _both_ways(size: Size, judge: Callable[[str], Judge]) -> dict[str, Any]:
    """Return a judge of what was measured as published, and one of the endless stream."""
    if not size.simulated:
        return {"judge": judge(ENDLESS)}
    return {"judge": judge(OVERFLOW), "tuned": judge(ENDLESS)}


def _best_other(outcome: Outcome, x: float, facet: str) -> tuple[Found, Found]:
    """Return dynamic memory at a place, and the highest of the others."""
    first, *others = outcome.names()
    return outcome.at(first, x, facet), max((outcome.at(other, x, facet) for other in others), key=lambda one: one.y)


def _few_tuples(outcome: Outcome) -> str:
    return (
        "With 70 % for pages, tuples have less than a third of the memory, and at small memories a join phase then "
        "begins with fewer than Table II asks for, or tuples that come during one find no room."
    )


def _same_reads(outcome: Outcome) -> str:
    first, *others = outcome.names()
    _, other, x = min((a.y / b.y, other, x) for other in others for x, a, b in outcome.pairs(first, other, ENDLESS))
    pages = [
        found.record["counts"]["pages_read"] / max(1, found.record["counts"]["rows_done"]) * 1e3
        for found in (outcome.at(first, x, ENDLESS), outcome.at(other, x, ENDLESS))
    ]
    return (
        "Which pages stay is decided when a join phase begins, with all its tuples still in memory (§IV-C), and what "
        "these leave is empty until the next phase. So dynamic memory caches as many pages as the fixed split that "
        "suits the thresholds best, and wins over the others only: on an endless stream, at "
        f"{x:g} % a thousand tuples take {pages[0]:,.0f} page reads, and {pages[1]:,.0f} with {other}."
    )


def _gain_grows(facet: str) -> Judge:
    def judge(outcome: Outcome) -> Verdict:
        places = [found.x for found in outcome.line(DYNAMIC, facet)]
        ends = [_best_other(outcome, x, facet) for x in (places[0], places[-1])]
        gains = [a.y / b.y for a, b in ends]
        noise = sum(a.interval / a.y + b.interval / b.y for a, b in ends)
        holds = gains[1] > max(1.0, gains[0] + noise)  # a loss that becomes smaller is no gain
        reason = (
            "The gain is over the best of the others, and which that is changes with memory: as soon as a twentieth of "
            "R fits into the fixed share for pages, a fixed split loses little."
        )
        text = f"{gains[0]:.2f}× the best other at {places[0]:g} %, {gains[1]:.2f}× at {places[-1]:g} %, ± {noise:.2f}"
        return Verdict(holds, text, "" if holds else reason)

    return judge


def _replacement(size: Size) -> Experiment:
    workload = relation(size)
    fractions = size.pick([0.01, 0.1], [0.05], [0.01, 0.1])
    policies = (("utility", "utility"), ("LRU", "lru"))
    return Experiment(
        id="ssij-11", paper=PAPER, figure="Figure 11", title="Which pages stay",
        setup=f"R {workload.rows / 1e6:g} M tuples, {workload.rows_per_key} of a key, skew 1.", x=MEMORY, y=RATE,
        samples=tuple(
            Sample(f"SSIJ, {name}{words}", 100 * part, make(size, workload, part * workload.nbytes, replacement=policy))
            for part in fractions
            for name, policy in policies
            for words, make in ((", as published", published_join), (", tuned", index_join))
        ),
        claims=(
            Claim("Pages by utility are above pages by recent use.", "superior",
                  **both_settings(above, "SSIJ, utility", "SSIJ, LRU")),
        ),
        notes=LESS if size.published else "",
    )  # fmt: skip


def _thresholds(size: Size) -> list[Experiment]:
    part = share(size)
    workload = relation(size)
    local = locality(size)
    inputs = size.pick([10, 100, 1000, 6000, 25_000], [20, 500, 5000], [100, 1000, 10_000])
    buffers = size.pick(
        [0.01, 0.03, 0.1, 0.3, 0.6, 0.9, 1.3, 1.7], [0.02, 0.3, 1.7], [0.05, 0.4, 0.8]
    )  # of the memory, at 80 bytes a waiting tuple; one that follows another of its key takes about half of that
    scans = size.pick([1, 2, 5, 10, 20, 50, 100, 200, 500], [1, 10, 200], [1, 20, 200])
    little = size.pick(0.01, 0.05, 0.02) * workload.nbytes
    setup = (
        f"R {workload.rows / 1e6:g} M tuples, {KEY_ROWS} of a key, skew 1, memory {little / workload.nbytes:.0%} of R."
    )

    def looked_up(count: int) -> Point:
        made = published_join(size, local, 0.1 * local.nbytes)
        table = table_two(local.rows / 80e6, made.memory, local)
        return dataclasses.replace(
            made, options={**table, "input_tuples": count}, seek_seconds=0.0085 * local.rows / 80e6,
            probes=size.pick(1_000_000, 100_000, 1 << 40),
        )  # fmt: skip

    def long(made: Point) -> Point:
        # a fall of a few percent shows only in many windows
        return dataclasses.replace(made, windows=size.pick(8, 2, 5), passes=2.0) if size.simulated else made

    return [
        Experiment(
            id="ssij-12", paper=PAPER, figure="Figure 12", title="Tuples looked up together (IB_thresh)",
            setup=f"R {local.rows / 1e6:g} M tuples, 16 of a key; a stream with locality; memory 10 % of R.",
            x=Axis("IB_thresh [tuples]", log=True, format="~s"), y=RATE,
            samples=tuple(Sample("SSIJ", count, looked_up(count)) for count in inputs),
            claims=(Claim("Throughput rises with the batch, up to a point.", "can significantly improve",
                          rises("SSIJ", at_least=SIGNIFICANTLY, because=_no_batch_cost)),),
            notes=SHORTER if size.published else "", modelled=False,
            taken=(Taken("a turn of the join with one descent of the index", "10 µs", "about a system call and some "
                         "misses of the processor's cache, in 2010"),) if size.simulated else (),
        ),
        Experiment(
            id="ssij-13", paper=PAPER, figure="Figure 13", title="Waiting tuples that start a join phase (SB_thresh)",
            setup=setup, x=Axis("SB_thresh [tuples]", log=True, format="~s"), y=RATE,
            samples=tuple(
                Sample("SSIJ", int(of * little / 80),
                       long(published_join(size, workload, little, buffer_tuples=max(16, int(of * little / 80)))))
                for of in buffers
            ),
            claims=(Claim("Throughput rises, is level, and falls when tuples take the memory of pages.",
                          "rise, plateau, fall", rises_then_falls("SSIJ", because=_no_fall)),),
            notes=LESS if size.published else "",
        ),
        Experiment(
            id="ssij-15", paper=PAPER, figure="Figure 15", title="The longest read (maxScan)",
            setup=setup, x=Axis(f"maxScan [pages; {part:g} of the paper's]", log=True, format="~g"), y=RATE,
            samples=tuple(
                Sample("SSIJ", pages, published_join(size, workload, little, max_scan=pages)) for pages in scans
            ),
            claims=(
                Claim("Throughput is poor at small maxScan and rises.", "rises", _rises_at_first),
                Claim("Very long reads make it fall.", "falls at the end",
                      ends_below("SSIJ", because=_own_buffer)),
            ),
            notes=LESS if size.published else "",
        ),
    ]  # fmt: skip


def _no_fall(outcome: Outcome) -> str:
    line = outcome.line("SSIJ")
    best = max(line, key=lambda found: found.y)
    widths = f"±{best.interval / best.y:.1%} and ±{line[-1].interval / best.y:.1%}"
    hits = ", ".join(f"{found.record['hit_ratio']:.0%} at {found.x:,.0f}" for found in (line[0], best, line[-1]))
    full = [found.x for found in line if found.y == line[-1].y]
    text = (
        f"The last point is {line[-1].y / best.y - 1:+.1%} from the highest (intervals {widths}), while the cache "
        f"answers {hits}: waiting tuples that share a pass over R make up for the pages they push out."
    )
    if len(full) > 1:
        text += (
            f" From {full[0]:,.0f} on fewer tuples fit than the threshold asks for, and it changes nothing: a join "
            "phase begins as soon as no more come in. The paper's is delayed until tuples that arrive find no room."
        )
    return text


def _rises_at_first(outcome: Outcome) -> Verdict:
    line = outcome.line("SSIJ")
    best = max(line, key=lambda found: found.y)
    text = f"{best.y / line[0].y:.1f}× from {line[0].x:g} to {best.x:g} pages"
    holds = best.y > 1.2 * line[0].y
    return Verdict(holds, text, "" if holds else _neighbours(outcome, line[0]))


def _neighbours(outcome: Outcome, first: Found) -> str:
    """Say why the shortest reads are hardly slower, and what they would be if each had a seek."""
    if outcome.real:
        return (
            "On this disk a read that begins anew costs hardly more than a page more in the last one, so long reads "
            "gain little over single pages."
        )
    counts, point = first.record["counts"], outcome.experiment.samples[0].point
    lone = counts["rows_done"] / first.y + point.seek_seconds * (counts["pages_read"] - counts["reads"])
    return (
        "The rows of a key lie on pages next to each other, and those take one seek however they are asked for: even "
        f"at maxScan {first.x:g} {counts['pages_read'] / max(1, counts['reads']):.0f} pages come with a seek. The "
        "paper's cost, S + T·i for each scan, has a seek for each; with that it would be "
        f"{format_count(counts['rows_done'] / lone)} tuples/s there. maxScan only bounds how far a read goes on over "
        "pages that nobody wants."
    )


def _no_batch_cost(_: Outcome) -> str:
    return (
        "A larger batch saves turns, look-ups of keys that are in it twice, and nothing else here: simulated time "
        "prices each look-up alike, while on a real processor the sorted look-ups of a large batch touch the index "
        "in order, which the run on a real device shows."
    )


def _own_buffer(outcome: Outcome) -> str:
    line = outcome.line("SSIJ")
    best = max(line, key=lambda found: found.y)
    # on a real device the next pages are read while these are joined: half of the buffer for each
    read = line[-1].record["memory_parts"]["read buffer"] // (8192 + READ_EXTRA)
    longest = read // 2 if outcome.real else read
    return (
        f"It is highest at {best.x:g} pages. No read is longer than the read buffer, {longest} pages at this memory, "
        f"so larger values change nothing. Here pages are read into a buffer of their own, and those between "
        "wanted ones never push out cached pages; the paper reads into the memory of the cache."
    )


def _fill(size: Size) -> Experiment:
    fills = size.pick([0.5, 0.65, 0.8, 1.0], [0.5, 1.0], [0.5, 0.75, 1.0])
    budgets = size.pick([0.02, 0.1], [0.05], [0.05])
    whole = relation(size)
    lines = [f"SSIJ, memory {part:.0%}" for part in budgets]

    def all_rise(outcome: Outcome) -> Verdict:
        found = [rises(line, at_least=1.3)(outcome) for line in lines]
        text = "; ".join(f"{line}: {one.measured}" for line, one in zip(lines, found, strict=True))
        return Verdict(all(one.holds for one in found), text, " ".join(one.reason for one in found).strip())

    return Experiment(
        id="ssij-14", paper=PAPER, figure="Figure 14", title="How full pages are",
        setup=f"R {whole.rows / 1e6:g} M tuples, {KEY_ROWS} of a key, skew 1.",
        x=Axis("fill factor of pages", zero=False, format="~g"), y=RATE,
        samples=tuple(
            Sample(line, fill, published_join(size, relation(size, fill=fill), part * whole.nbytes))
            for line, part in zip(lines, budgets, strict=True) for fill in fills
        ),
        claims=(Claim("Throughput falls as pages are filled less.", "large impact", all_rise),),
        notes=LESS if size.published else "",
    )  # fmt: skip
