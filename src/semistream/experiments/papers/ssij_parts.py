"""SSIJ §VI-D: what its parts and parameters do, Figures 10 to 15."""

from __future__ import annotations

import dataclasses

from semistream.experiments.experiment import Claim, Experiment
from semistream.experiments.judge.claims import above, rises, rises_then_falls
from semistream.experiments.judge.outcome import Found, Outcome
from semistream.experiments.papers.cmesh import MEMORY, RATE
from semistream.experiments.papers.ssij_setups import (
    LESS,
    PAPER,
    SHORTER,
    index_join,
    locality,
    published_thresholds,
    relation,
    share,
)
from semistream.experiments.scales import Size
from semistream.experiments.spec import Axis, Point, Sample, Verdict
from semistream.joins.ssij.ssij_layout import READ_EXTRA

__all__ = ["experiments"]

_SPLITS: dict[str, dict[str, object]] = {
    "dynamic memory": {},
    "70 % for pages": {"cache_share": 0.7},
    "50 % for pages": {"cache_share": 0.5},
    "20 % for pages": {"cache_share": 0.2},
    "no cache": {"replacement": "none"},
}


def experiments(size: Size) -> list[Experiment]:
    """Describe the experiments."""
    return [_dynamic(size), _replacement(size), *_thresholds(size), _fill(size)]


def _dynamic(size: Size) -> Experiment:
    workload = locality(size)
    fractions = size.pick([0.01, 0.025, 0.05, 0.1], [0.05, 0.1], [0.025, 0.1])

    def point(part: float, options: dict[str, object]) -> Point:
        memory = part * workload.nbytes
        thresholds = published_thresholds(workload.rows / 80e6, memory, workload)
        return Point(
            workload=workload, algorithm="ssij", memory=int(memory), options={**thresholds, **options},
            windows=size.pick(3, 2, 5), passes=20.0, warm_passes=10.0, probes=size.pick(2_000_000, 400_000, 1 << 40),
            seek_seconds=0.0085 * workload.rows / 80e6 if size.simulated else 0.0085,
        )  # fmt: skip

    return Experiment(
        id="ssij-10", paper=PAPER, figure="Figure 10", title="Memory that moves, and memory that does not",
        setup=f"R {workload.rows / 1e6:g} M tuples, 16 of a key; the stream asks for one twentieth of R after another.",
        x=MEMORY, y=RATE,
        samples=tuple(
            Sample(name, 100 * part, point(part, dict(options)))
            for part in fractions for name, options in _SPLITS.items()
        ),
        claims=(
            Claim("Dynamic memory is above every fixed split and above no cache.", "significantly higher",
                  _dynamic_highest),
            Claim("The gain grows with memory.", "increases with memory", _gain_grows),
        ),
        modelled=False,
        notes=(
            "R, memory, intervals, thresholds and the seek of the disk are a fortieth of the paper's. The paper raises "
            "the arrival rate until memory overflows before its 40 M tuples are over, half of which the memory holds "
            "at 10 % of R; here it is the service rate, which is what an endless stream may have."
        ) if size.published else "",
    )  # fmt: skip


def _dynamic_highest(outcome: Outcome) -> Verdict:
    first, *others = outcome.names()
    judged = [above(first, other)(outcome) for other in others]
    best = [_best_other(outcome, found.x) for found in outcome.line(first)]
    # a tie everywhere is not above
    clear = any(a.y - a.interval > b.y + b.interval for a, b in best)
    least = min(
        (a.y / b.y, other, x) for other in others for x, a, b in outcome.pairs(first, other)
    )  # fmt: skip
    most = max((a.y / b.y, other, x) for other in others for x, a, b in outcome.pairs(first, other))
    text = f"{least[0]:.2f}× {least[1]} at {least[2]:g} %, {most[0]:.2f}× {most[1]} at {most[2]:g} %"
    holds = clear and all(verdict.holds for verdict in judged)
    return Verdict(holds, text, "" if holds else _same_reads(outcome))


def _best_other(outcome: Outcome, x: float) -> tuple[Found, Found]:
    """Return dynamic memory at a place, and the highest of the others."""
    first, *others = outcome.names()
    return outcome.at(first, x), max((outcome.at(other, x) for other in others), key=lambda found: found.y)


def _same_reads(outcome: Outcome) -> str:
    first, *others = outcome.names()
    _, other, x = min((a.y / b.y, other, x) for other in others for x, a, b in outcome.pairs(first, other))
    pages = [
        found.record["counts"]["pages_read"] / found.record["counts"]["rows_done"] * 1e3
        for found in (outcome.at(first, x), outcome.at(other, x))
    ]
    return (
        "Which pages stay is decided when a join phase begins, with all its tuples still in memory (§IV-C), and what "
        "these leave is empty until the next phase. So dynamic memory caches as many pages as the fixed split that "
        "suits the thresholds best, and wins over the others only: at "
        f"{x:g} % a thousand tuples take {pages[0]:,.0f} page reads, and {pages[1]:,.0f} with {other}."
    )


def _gain_grows(outcome: Outcome) -> Verdict:
    places = [found.x for found in outcome.line(outcome.names()[0])]
    ends = [_best_other(outcome, x) for x in (places[0], places[-1])]
    gains = [a.y / b.y for a, b in ends]
    noise = sum(a.interval / a.y + b.interval / b.y for a, b in ends)
    holds = gains[1] > gains[0] + noise
    reason = (
        "The gain is over the best of the others, and which that is changes with memory: as soon as a twentieth of R "
        "fits into the fixed share for pages, a fixed split loses little."
    )
    text = f"{gains[0]:.2f}× the best other at {places[0]:g} %, {gains[1]:.2f}× at {places[-1]:g} %"
    return Verdict(holds, text, "" if holds else reason)


def _replacement(size: Size) -> Experiment:
    workload = relation(size)
    fractions = size.pick([0.01, 0.025, 0.05, 0.1], [0.05], [0.01, 0.1])

    def point(part: float, policy: str) -> Point:
        made = index_join(size, workload, part * workload.nbytes)
        return made if policy == "utility" else dataclasses.replace(made, options={"replacement": policy})

    return Experiment(
        id="ssij-11", paper=PAPER, figure="Figure 11", title="Which pages stay",
        setup=f"R {workload.rows / 1e6:g} M tuples, skew 1.", x=MEMORY, y=RATE,
        samples=tuple(
            Sample(f"SSIJ, {name}", 100 * part, point(part, policy))
            for part in fractions for name, policy in (("utility", "utility"), ("LRU", "lru"))
        ),
        claims=(
            Claim("Pages by utility are above pages by recent use.", "above", above("SSIJ, utility", "SSIJ, LRU")),
        ),
        notes=LESS if size.published else "",
    )  # fmt: skip


def _thresholds(size: Size) -> list[Experiment]:
    part = share(size)
    workload = relation(size)
    local = locality(size)
    inputs = size.pick([10, 100, 1000, 6000, 25_000, 50_000], [20, 500, 5000], [100, 1000, 10_000])
    buffers = size.pick(
        [0.01, 0.03, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9], [0.02, 0.3, 0.9], [0.05, 0.4, 0.8]
    )  # of the memory, at 80 bytes a waiting tuple
    scans = size.pick([1, 2, 5, 10, 20, 50, 100, 200, 500], [1, 10, 200], [1, 20, 200])
    little = size.pick(0.02, 0.05, 0.02) * workload.nbytes

    def with_options(made: Point, **options: object) -> Point:
        return dataclasses.replace(made, options={**made.options, **options})

    return [
        Experiment(
            id="ssij-12", paper=PAPER, figure="Figure 12", title="Tuples looked up together (IB_thresh)",
            setup=f"R {local.rows / 1e6:g} M tuples, 16 of a key; a stream with locality; memory 10 % of R.",
            x=Axis("IB_thresh [tuples]", log=True, format="~s"), y=RATE,
            samples=tuple(
                Sample("SSIJ", count, with_options(
                    dataclasses.replace(index_join(size, local, 0.1 * local.nbytes),
                                        seek_seconds=0.0085 * local.rows / 80e6,
                                        probes=size.pick(1_000_000, 100_000, 1 << 40)),
                    buffer_tuples=int(1_000_000 * local.rows / 80e6), input_tuples=count))
                for count in inputs
            ),
            claims=(Claim("Throughput rises with the batch, up to a point.", "rises, then level",
                          rises("SSIJ", at_least=1.1, because=_no_batch_cost)),),
            notes=SHORTER if size.published else "", modelled=False,
        ),
        Experiment(
            id="ssij-13", paper=PAPER, figure="Figure 13", title="Waiting tuples that start a join phase (SB_thresh)",
            setup=f"R {workload.rows / 1e6:g} M tuples, skew 1, memory {little / workload.nbytes:.0%} of R.",
            x=Axis("SB_thresh [tuples]", log=True, format="~s"), y=RATE,
            samples=tuple(
                Sample("SSIJ", int(of * little / 80), with_options(
                    index_join(size, workload, little), buffer_tuples=int(of * little / 80)))
                for of in buffers
            ),
            claims=(Claim("Throughput rises, is level, and falls when tuples take the memory of pages.",
                          "rise, plateau, fall", rises_then_falls("SSIJ", because=_no_fall)),),
            notes=LESS if size.published else "",
        ),
        Experiment(
            id="ssij-15", paper=PAPER, figure="Figure 15", title="The longest read (maxScan)",
            setup=f"R {workload.rows / 1e6:g} M tuples, skew 1, memory {little / workload.nbytes:.0%} of R.",
            x=Axis(f"maxScan [pages; {part:g} of the paper's]", log=True, format="~g"), y=RATE,
            samples=tuple(
                Sample("SSIJ", pages, with_options(index_join(size, workload, little), max_scan=pages))
                for pages in scans
            ),
            claims=(
                Claim("Throughput is poor at small maxScan and rises.", "rises", _rises_at_first),
                Claim("Very long reads make it fall.", "falls at the end",
                      rises_then_falls("SSIJ", because=_own_buffer)),
            ),
            notes=LESS if size.published else "",
        ),
    ]  # fmt: skip


def _no_fall(outcome: Outcome) -> str:
    line = outcome.line("SSIJ")
    best = max(line, key=lambda found: found.y)
    widths = f"±{best.interval / best.y:.1%} and ±{line[-1].interval / best.y:.1%}"
    hits = f"{best.record['hit_ratio']:.0%} and then {line[-1].record['hit_ratio']:.0%}"
    return (
        f"The last point is {line[-1].y / best.y - 1:+.1%} from the highest, within the intervals ({widths}), while "
        f"the cache answers {hits}: waiting tuples that share a pass over R make up for the pages they push out."
    )


def _rises_at_first(outcome: Outcome) -> Verdict:
    line = outcome.line("SSIJ")
    best = max(line, key=lambda found: found.y)
    text = f"{best.y / line[0].y:.1f}× from {line[0].x:g} to {best.x:g} pages"
    holds = best.y > 1.2 * line[0].y
    reason = (
        "On this disk a read that begins anew costs hardly more than a page more in the last one, so long reads gain "
        "little over single pages."
    )
    return Verdict(holds, text, "" if holds else reason)


def _no_batch_cost(_: Outcome) -> str:
    return (
        "A larger batch saves look-ups of keys that are in it twice, and nothing else here: simulated time prices each "
        "look-up alike, while on a real processor the sorted look-ups of a large batch touch the index in order, which "
        "the run on a real device shows."
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
    fills = size.pick([0.5, 0.6, 0.7, 0.8, 0.9, 1.0], [0.5, 1.0], [0.5, 0.75, 1.0])
    budgets = size.pick([0.02, 0.05, 0.1], [0.05], [0.05])
    whole = relation(size)
    return Experiment(
        id="ssij-14", paper=PAPER, figure="Figure 14", title="How full pages are",
        setup=f"R {whole.rows / 1e6:g} M tuples, skew 1.",
        x=Axis("fill factor of pages", zero=False, format="~g"), y=RATE,
        samples=tuple(
            Sample(f"SSIJ, memory {part:.0%}", fill, index_join(size, relation(size, fill=fill), part * whole.nbytes))
            for part in budgets for fill in fills
        ),
        claims=tuple(
            Claim(f"Throughput falls as pages are filled less (memory {part:.0%}).", "large impact",
                  rises(f"SSIJ, memory {part:.0%}", at_least=1.3))
            for part in budgets
        ),
        notes=LESS if size.published else "",
    )  # fmt: skip
