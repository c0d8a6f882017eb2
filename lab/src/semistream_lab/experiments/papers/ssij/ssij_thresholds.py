"""SSIJ §VI-D: effects of its parameters, Figures 12, 13 and 15."""

from __future__ import annotations

import dataclasses

from semistream.core.units import format_count
from semistream.joins.ssij.ssij_layout import READ_EXTRA
from semistream_lab.experiments.experiment import Claim, Experiment
from semistream_lab.experiments.judge.claims import SIGNIFICANTLY, Judge, ends_below, rises
from semistream_lab.experiments.judge.outcome import Found, Outcome
from semistream_lab.experiments.papers.cmesh import RATE
from semistream_lab.experiments.papers.ssij.ssij_comparing import PRICED, metric, notes
from semistream_lab.experiments.papers.ssij.ssij_parts import ENDLESS, OVERFLOW, RAISED, both_ways
from semistream_lab.experiments.papers.ssij.ssij_setups import (
    KEY_ROWS,
    LESS,
    PAPER,
    SHORTER,
    locality,
    published_join,
    relation,
    table_two,
)
from semistream_lab.experiments.scales import Size
from semistream_lab.experiments.spec import PAGE_BYTES, Axis, Point, Sample, Taken, Verdict

__all__ = ["experiments"]

PAPERS_SEEK, IN_PROPORTION = "the paper's seek, read buffer outside the memory", "all in proportion to R"
_TWO_SEEKS = (
    "Each scan of up to maxScan pages costs a seek, by the paper's formula, also if it is adjacent to the one before. "
    "Both sentences are judged with everything in proportion to R. The other panel shows what long reads save with the "
    "paper's own seek time; the read buffer is negligible in the paper's memory and is added to ours there."
)
_WAITS = (
    "400,000 tuples arrive, two fifths of the paper's in proportion. A join phase begins only when as many tuples wait "
    "as the threshold requires. If memory cannot hold them, it overflows at the slowest rate of the search. Our join "
    "begins a phase as soon as memory is short, as the endless stream shows."
)


def experiments(size: Size) -> list[Experiment]:
    """Describe the experiments."""
    workload, local = relation(size), locality(size)
    inputs = size.pick([10, 100, 1000, 6000, 25_000], [20, 500, 5000], [100, 1000, 10_000])
    # shares of the memory, at 80 bytes per waiting tuple; a second tuple of the same key takes about half of that
    buffers = size.pick([0.01, 0.1, 0.3, 0.5, 0.6, 0.7], [0.02, 0.2, 0.5], [0.05, 0.4, 0.8])
    scans = size.pick([1, 2, 5, 10, 20, 50, 100, 200, 500], [1, 10, 200], [1, 20, 200])
    little = size.pick(0.01, 0.05, 0.02) * workload.nbytes
    setup = (
        f"R {workload.rows / 1e6:g} M tuples, {KEY_ROWS} per key, skew 1, memory {little / workload.nbytes:.0%} of R."
    )

    def looked_up(count: int) -> Point:
        made = published_join(size, local, 0.1 * local.nbytes)
        table = table_two(local.rows / 80e6, made.memory, local)
        return dataclasses.replace(
            made, options={**table, "input_tuples": count}, seek_seconds=0.0085 * local.rows / 80e6,
            probes=size.pick(1_000_000, 100_000, 1 << 40),
        )  # fmt: skip

    def waiting(of: float) -> tuple[int, Point]:
        count = max(16, int(of * little / 80))
        return count, published_join(size, workload, little, buffer_tuples=count)

    def scanning(pages: int) -> Point:
        made = published_join(size, workload, little, max_scan=pages)
        # the paper's cost of a scan of i pages is S + T·i, also if the next scan is adjacent
        return dataclasses.replace(made, settings={"scan_pages": pages} if size.simulated else {})

    def beside(pages: int) -> Point:
        return dataclasses.replace(
            scanning(pages), memory=int(little + pages * (PAGE_BYTES + READ_EXTRA)), seek_seconds=0.0085
        )

    def driven(made: Point) -> Point:
        settings = {
            "tuples": size.pick(400_000, 20_000, 0), "between": size.pick([1500.0, 12e3], [200.0, 2e4], []),
            "trials": 6, "waits_for_threshold": True,
        }  # fmt: skip
        return dataclasses.replace(
            made, task="sustained", settings=settings, options={"input_limit": made.memory // 40, **made.options}
        )

    return [
        Experiment(
            id="ssij-12", paper=PAPER, figure="Figure 12", title="Tuples looked up together (IB_thresh)",
            setup=f"R {local.rows / 1e6:g} M tuples, 16 per key; a stream with locality; memory 10 % of R.",
            x=Axis("IB_thresh [tuples]", log=True, format="~s"), y=RATE,
            samples=tuple(Sample("SSIJ", count, looked_up(count)) for count in inputs),
            claims=(Claim("Throughput rises with the batch, up to a point.", "can significantly improve",
                          rises("SSIJ", at_least=SIGNIFICANTLY, because=_no_batch_cost), standing="construction"),),
            notes=f"{SHORTER} {PRICED}" if size.published else "", modelled=False,
            taken=(Taken("an iteration of the join with one descent of the index", "10 µs", "about a system call and "
                         "some misses of the processor's cache, in 2010"),) if size.simulated else (),
        ),
        Experiment(
            id="ssij-13", paper=PAPER, figure="Figure 13", title="Waiting tuples that start a join phase (SB_thresh)",
            setup=setup, x=Axis("SB_thresh [tuples]", log=True, format="~s"), y=RATE,
            samples=(
                *(Sample("SSIJ", count, driven(point), facet=OVERFLOW, metric="sustained")
                  for count, point in map(waiting, buffers) if size.simulated),
                *(Sample("SSIJ", count, point, facet=ENDLESS) for count, point in map(waiting, buffers)),
            ),
            claims=(Claim("Throughput rises, is level, and falls when tuples take the memory of pages.",
                          "rise, plateau, fall",
                          **both_ways(size, _rise_level_fall)),),
            notes=f"{LESS} {RAISED} {_WAITS} Each result costs 120 ns." if size.published else "",
        ),
        Experiment(
            id="ssij-15", paper=PAPER, figure="Figure 15", title="The longest read (maxScan)",
            setup=setup, x=Axis("maxScan [pages]", log=True, format="~g"), y=RATE,
            samples=(
                *(Sample("SSIJ", pages, beside(pages), facet=PAPERS_SEEK)
                  for pages in size.pick([1, 5, 20, 100], [1, 10], [])),
                *(Sample("SSIJ", pages, scanning(pages), facet=IN_PROPORTION)
                  for pages in scans),
            ),
            claims=(
                Claim("Throughput is poor at small maxScan and rises.", "rises", _rises_at_first(IN_PROPORTION)),
                Claim("Very long reads make it fall.", "falls at the end",
                      ends_below("SSIJ", facet=IN_PROPORTION, because=_own_buffer)),
                *((Claim("With the paper's own seek it rises, too.", "not in the paper", _rises_at_first(PAPERS_SEEK),
                         standing="beside"),) if size.simulated else ()),
            ),
            metric=metric(size), notes=f"{notes(size)} {_TWO_SEEKS}" if size.published else "",
            modelled=False,  # the model charges adjacent scans one seek
        ),
    ]  # fmt: skip


_LEVEL = 0.9
"""Lowest rate of the part that is "almost constant", as a share of the highest rate."""


def _rise_level_fall(facet: str) -> Judge:
    """Judge that a line rises, has at least two points within a tenth of the highest, and falls.

    If memory cannot hold as many tuples as a threshold requires, arriving tuples find no room at any rate. This is the
    fall that the paper describes.
    """

    def judge(outcome: Outcome) -> Verdict:
        line = outcome.line("SSIJ", facet)
        held = [found for found in line if facet != OVERFLOW or "join_phases" in found.record]
        if len(held) < 2:
            return Verdict(False, "memory holds none of the thresholds", "nothing to compare")
        best = max(held, key=lambda found: found.y)
        rise = best.y - best.interval > held[0].y + held[0].interval
        fall = len(held) < len(line) or best.y - best.interval > held[-1].y + held[-1].interval
        level = sum(found.y + found.interval >= _LEVEL * best.y for found in held) > 1
        text = ", ".join(f"{format_count(found.y)} at {found.x:,.0f}" for found in held)
        if len(held) < len(line):
            text += f"; memory does not hold {', '.join(f'{found.x:,.0f}' for found in line if found not in held)}"
        holds = rise and level and fall
        return Verdict(holds, text, "" if holds else _no_fall(held))

    return judge


def _no_fall(line: list[Found]) -> str:
    best = max(line, key=lambda found: found.y)
    widths = f"±{best.interval / best.y:.1%} and ±{line[-1].interval / best.y:.1%}"
    hits = ", ".join(
        f"{found.record.get('hit_ratio', 0.0):.0%} at {found.x:,.0f}" for found in (line[0], best, line[-1])
    )
    full = [found.x for found in line if found.y == line[-1].y]
    text = (
        f"The last of these is {line[-1].y / best.y - 1:+.1%} from the highest (intervals {widths}), while the cache "
        f"answers {hits}: waiting tuples that share a pass over R compensate for the pages they evict."
    )
    if len(full) > 1:
        text += (
            f" From {full[0]:,.0f} on fewer tuples fit than the threshold requires, so it changes nothing: our join "
            "begins a phase as soon as memory is short, while the paper's delays it until arriving tuples find no room."
        )
    return text


def _rises_at_first(facet: str) -> Judge:
    def judge(outcome: Outcome) -> Verdict:
        line = outcome.line("SSIJ", facet)
        best = max(line, key=lambda found: found.y)
        text = f"{best.y / line[0].y:.1f}× from {line[0].x:g} to {best.x:g} pages"
        holds = best.y > 1.2 * line[0].y
        return Verdict(holds, text, "" if holds else _neighbours(outcome, line[0], facet))

    return judge


def _neighbours(outcome: Outcome, first: Found, facet: str) -> str:
    """Explain why the shortest reads are hardly slower, and what the rate would be with one seek per page."""
    if outcome.real:
        return (
            "On this disk a new read costs hardly more than one more page in the current read, so long reads gain "
            "little over single pages."
        )
    counts = first.record["counts"]
    return (
        f"At maxScan {first.x:g} a read has {counts['pages_read'] / max(1, counts['reads']):.1f} pages, and reads take "
        f"{first.record['io_share']:.0%} of the time."
    )


def _no_batch_cost(_: Outcome) -> str:
    return (
        "Here a larger batch saves only iterations and repeated look-ups of the same key: in simulated time each "
        "look-up has the same price. On a real processor the sorted look-ups of a large batch access the index in "
        "order, which the run on a real device shows."
    )


def _own_buffer(outcome: Outcome) -> str:
    line = outcome.line("SSIJ", IN_PROPORTION)
    best = max(line, key=lambda found: found.y)
    # on a real device the next pages are read while the current ones are joined: each has half of the buffer
    read = line[-1].record["memory_parts"]["read buffer"] // (PAGE_BYTES + READ_EXTRA)
    longest = read // 2 if outcome.real else read
    return (
        f"The rate is highest at {best.x:g} pages. No read is longer than the read buffer, {longest} pages at this "
        "memory, so larger values change nothing. Here pages are read into a separate buffer, so the pages in between "
        "that are not needed never evict cached pages. The paper reads into the memory of the cache."
    )
