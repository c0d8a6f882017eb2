"""SSIJ §VI-D: effects of its parts, Figures 10, 11 and 14."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from semistream.core.units import format_count
from semistream_lab.experiments.experiment import Claim, Experiment
from semistream_lab.experiments.judge.claims import SIGNIFICANTLY, Judge, above, rises
from semistream_lab.experiments.judge.outcome import Found, Outcome
from semistream_lab.experiments.papers.cmesh import MEMORY, RATE
from semistream_lab.experiments.papers.settings import both_settings
from semistream_lab.experiments.papers.ssij.ssij_comparing import PRICED, metric, notes
from semistream_lab.experiments.papers.ssij.ssij_setups import (
    KEY_ROWS,
    PAPER,
    SHORTER,
    index_join,
    locality,
    published_join,
    relation,
    table_two,
)
from semistream_lab.experiments.scales import Size
from semistream_lab.experiments.spec import Axis, Point, Sample, Taken, Verdict

__all__ = ["ENDLESS", "OVERFLOW", "RAISED", "both_ways", "experiments"]

DYNAMIC = "dynamic memory"
_SPLITS: dict[str, dict[str, object]] = {
    DYNAMIC: {},
    "70 % for pages": {"cache_share": 0.7},
    "50 % for pages": {"cache_share": 0.5},
    "20 % for pages": {"cache_share": 0.2},
    "no cache": {"replacement": "none"},
}
_INPUT_BYTES = 40
"""Bytes that a tuple takes until it is looked up."""
_LARGE_BYTES = 106
"""Bytes of a larger stream tuple, which takes 126 until it is looked up; see `_LARGE`."""
_LARGE = Taken(
    "bytes of a stream tuple", f"20, which take {_INPUT_BYTES} until they are looked up; with 10 % memory also 126",
    "because 375 MB, 5500 tuples/s and 9 min (Figure 16) imply 126, and with 40 two thirds of the paper's stream fit "
    "into 10 % memory and need not be served",
)  # fmt: skip
_AS_LARGE = ", tuples of 126 bytes"
OVERFLOW, ENDLESS = "arrivals raised until memory overflows", "service rate of an endless stream"
RAISED = (
    "As published: the highest constant arrival rate at which memory does not overflow before the stream ends. All "
    "memory that the join does not need itself is free for tuples that arrive during a join phase."
)


def experiments(size: Size) -> list[Experiment]:
    """Describe the experiments."""
    return [_dynamic(size), _replacement(size), _fill(size)]


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
        # as in the paper, the stream ends after 20 intervals, and tuples still in memory then need not be served
        between = size.pick([3e4, 3e5], [1e4, 1e6], [])
        settings = {"tuples": 20 * workload.interval_rows, "between": between, "trials": 7}
        limit = int((1.0 - float(str(options.get("cache_share", 0.0)))) * made.memory / _INPUT_BYTES)
        return dataclasses.replace(
            made, task="sustained", settings=settings, options={"input_limit": limit, **made.options}
        )

    def larger(options: dict[str, object]) -> Point:
        made = driven(fractions[-1], options)
        limit = int(made.options["input_limit"] * _INPUT_BYTES / (_LARGE_BYTES + 20))
        return dataclasses.replace(
            made, workload=dataclasses.replace(workload, stream_bytes=_LARGE_BYTES),
            options={**made.options, "input_limit": limit},
        )  # fmt: skip

    return Experiment(
        id="ssij-10", paper=PAPER, figure="Figure 10", title="Memory that moves, and memory that does not",
        setup=f"R {workload.rows / 1e6:g} M tuples, 16 per key; the stream uses one twentieth of R after another.",
        x=MEMORY, y=RATE,
        samples=(
            *(Sample(name, 100 * part, driven(part, dict(options)), facet=OVERFLOW, metric="sustained")
              for part in fractions for name, options in _SPLITS.items() if size.simulated),
            *(Sample(f"{name}{_AS_LARGE}", 100 * fractions[-1], larger(dict(options)), aside=True, metric="sustained")
              for name, options in _SPLITS.items() if size.simulated),
            *(Sample(name, 100 * part, point(part, dict(options)), facet=ENDLESS)
              for part in fractions for name, options in _SPLITS.items()),
        ),
        claims=(
            Claim("More memory for pages is better: 70 % above 50 % above 20 % above none.", "increasing throughput",
                  **both_ways(size, lambda facet: above(*list(_SPLITS)[1:], facets=(facet,), because=_few_tuples))),
            Claim("Dynamic memory is above every fixed split and above no cache.", "significantly higher",
                  **both_ways(size, lambda facet: above(*_SPLITS, of_all=True, facets=(facet,), factor=SIGNIFICANTLY,
                                                        because=_same_reads))),
            Claim("The gain of dynamic memory grows with memory.", "increases with memory",
                  **both_ways(size, _gain_grows)),
        ),
        modelled=False,
        notes=f"{SHORTER} {RAISED} {PRICED}" if size.published else "",
        taken=(_LARGE,) if size.simulated else (),
    )  # fmt: skip


def both_ways(size: Size, judge: Callable[[str], Judge]) -> dict[str, Any]:
    """Return a judge of the measurement as published, and one of the endless stream."""
    if not size.simulated:
        return {"judge": judge(ENDLESS)}
    return {"judge": judge(OVERFLOW), "tuned": judge(ENDLESS), "second": "endless stream"}


def _best_other(outcome: Outcome, x: float, facet: str) -> tuple[Found, Found]:
    """Return the number for dynamic memory at an x position, and the highest number of the other lines."""
    first, *others = outcome.names()
    return outcome.at(first, x, facet), max((outcome.at(other, x, facet) for other in others), key=lambda one: one.y)


def _few_tuples(outcome: Outcome) -> str:
    """Explain what tuples lose if pages have more memory."""
    text = (
        "With 70 % for pages, tuples have less than a third of the memory. At small memories a join phase then begins "
        "with fewer tuples than in Table II, or tuples that arrive during a phase find no room."
    )
    raised = [sample for sample in outcome.experiment.samples if sample.facet == OVERFLOW]
    if not raised:
        return text
    last = raised[-1]
    tuples, shares = last.point.settings["tuples"], [0.0, 0.2, 0.5, 0.7]
    room = ", ".join(f"{(1.0 - share) * last.point.memory / _INPUT_BYTES / tuples:.0%}" for share in shares)
    rates = ", ".join(format_count(outcome.at(name, last.x, ENDLESS).y) for name in reversed(list(_SPLITS)[1:]))
    return (
        f"{text} With much memory the tuples that still wait when the stream ends decide, as they need not be served: "
        f"of {tuples:,} tuples in all, {last.x:g} % memory has room for {room} with none, 20, 50 and 70 % for pages. "
        f"The rates on an endless stream are {rates} tuples/s.{_with_large(outcome)}"
    )


def _with_large(outcome: Outcome) -> str:
    """Return what was measured with tuples that are so large that most do not fit into memory."""
    found = {name: outcome.aside.get(f"{name}{_AS_LARGE}") for name in _SPLITS}
    if not all(found.values()):
        return ""
    rates = ", ".join(f"{record['sustained']:,.0f} ({name})" for name, record in found.items() if record)
    return f" With 10 % memory and tuples of 126 bytes, a fifth of the stream fits, and the splits serve {rates}."


def _same_reads(outcome: Outcome) -> str:
    first, *others = outcome.names()
    _, other, x = min((a.y / b.y, other, x) for other in others for x, a, b in outcome.pairs(first, other, ENDLESS))
    pages = [
        found.record["counts"]["pages_read"] / max(1, found.record["counts"]["rows_done"]) * 1e3
        for found in (outcome.at(first, x, ENDLESS), outcome.at(other, x, ENDLESS))
    ]
    text = (
        "The join decides which pages stay when a join phase begins, with all its tuples still in memory (§IV-C). The "
        "tuples are flushed after the last read (Algorithm 2, line 17), and the room they leave is not used before "
        "then. So dynamic memory caches as many pages as the fixed split that suits the thresholds best, and only wins "
        f"over the others: on an endless stream, at {x:g} % memory, a thousand tuples need {pages[0]:,.0f} page reads, "
        f"and {pages[1]:,.0f} with {other}."
    )
    raised = [(a.y / b.y, other, x) for other in others for x, a, b in outcome.pairs(first, other, OVERFLOW)]
    if raised:
        _, other, x = min(raised)
        hits = [outcome.at(name, x, OVERFLOW).record.get("hit_ratio", 0.0) for name in (first, other)]
        text += (
            " Where arrivals are raised, tuples that arrive during a join phase evict cached pages, which a fixed "
            f"split keeps: at {x:g} % memory {hits[0]:.0%} of the stream are answered from memory, and {hits[1]:.0%} "
            f"with {other}."
        )
        found = outcome.at(first, x, OVERFLOW).record
        if found.get("join_phases") and "virtual_seconds" in found:
            come = found["sustained"] * found["virtual_seconds"] / found["join_phases"]
            sample = next(one for one in outcome.experiment.samples if one.x == x)
            text += (
                " It matters little that pages cannot use the room that a phase frees before it ends: between two "
                f"phases {come:,.0f} tuples arrive there, and the tuples of one phase free the room of "
                f"{sample.point.options['buffer_tuples']:,}."
            )
    return text + _with_large(outcome)


def _gain_grows(facet: str) -> Judge:
    def judge(outcome: Outcome) -> Verdict:
        places = [found.x for found in outcome.line(DYNAMIC, facet)]
        ends = [_best_other(outcome, x, facet) for x in (places[0], places[-1])]
        gains = [a.y / b.y for a, b in ends]
        noise = sum(a.interval / a.y + b.interval / b.y for a, b in ends)
        holds = gains[1] > max(1.0, gains[0] + noise)  # a loss that becomes smaller is not a gain
        reason = (
            "The gain is relative to the best of the others, which differs with memory: as soon as a twentieth of R "
            "fits into the fixed share for pages, a fixed split loses little."
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
        setup=f"R {workload.rows / 1e6:g} M tuples, {workload.rows_per_key} per key, skew 1.", x=MEMORY, y=RATE,
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
        metric=metric(size), notes=notes(size),
    )  # fmt: skip


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
        setup=f"R {whole.rows / 1e6:g} M tuples, {KEY_ROWS} per key, skew 1.",
        x=Axis("fill factor of pages", zero=False, format="~g"), y=RATE,
        samples=tuple(
            Sample(line, fill, published_join(size, relation(size, fill=fill), part * whole.nbytes))
            for line, part in zip(lines, budgets, strict=True) for fill in fills
        ),
        claims=(Claim("Throughput falls as pages are filled less.", "large impact", all_rise),),
        metric=metric(size), notes=notes(size),
    )  # fmt: skip
