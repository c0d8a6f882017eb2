"""X-HYBRIDJOIN against other joins, tuned and untuned: Figures 3, 7 and 8."""

from __future__ import annotations

import dataclasses

from semistream_lab.experiments.experiment import Claim, Experiment
from semistream_lab.experiments.judge.claims import (
    SIGNIFICANTLY,
    Judge,
    above,
    gain_changes,
    gain_goes,
    model_within,
    rises,
)
from semistream_lab.experiments.judge.outcome import Outcome
from semistream_lab.experiments.papers.cmesh import RATE, SKEW
from semistream_lab.experiments.papers.hybrid import (
    MB,
    MEMORY,
    NODE,
    PARTITIONS,
    ROWS,
    budget,
    disk_buffer,
    disk_pages,
    hybrid,
    paper,
    scan,
    small,
    small_pages,
    zipf,
)
from semistream_lab.experiments.papers.reasons.xhybrid_reasons import (
    locality,
    pinned_pages,
    reading_left,
    small_part,
    uniform,
)
from semistream_lab.experiments.papers.settings import (
    AS_PUBLISHED,
    TUNED,
    as_published,
    both_settings,
    few_tuned,
    published,
    tuned,
    with_more_seeds,
)
from semistream_lab.experiments.papers.xhybrid_grid import PAPER, PAPERS_WAY, VARIANCES, by_its_formulas, model_noise
from semistream_lab.experiments.scales import Size
from semistream_lab.experiments.spec import Axis, Point, Printed, Sample, Taken, Verdict, Workload

__all__ = ["experiments"]

SPLIT = "X-HYBRIDJOIN, its split tuned"
MEMORIES = [50.0, 100.0, 200.0]
"""Memory in MB. The paper's 250 MB would be more than R."""
FOUR = {"X-HYBRIDJOIN": "x_hybridjoin", "HYBRIDJOIN": "hybridjoin", "R-MESHJOIN": "r_meshjoin", "MESHJOIN": "meshjoin"}
_BYTES = (
    "As published: 172 bytes per waiting tuple in all joins; both parts of X-HYBRIDJOIN's disk buffer are as large as "
    "HYBRIDJOIN's, and all pinned rows are looked up in every iteration. Tuned: our bytes, and the best split per join."
)


def untuned(size: Size, workload: Workload, memory: int) -> Point:
    """Return X-HYBRIDJOIN with both parts of its disk buffer as large as HYBRIDJOIN's."""
    point = paper(size, workload, memory, "x_hybridjoin")
    return dataclasses.replace(point, options={**point.options, **PAPERS_WAY, "pinned_pages": disk_pages(size)})


def tuned_as_published(size: Size, workload: Workload, memory: int) -> Point:
    """Return X-HYBRIDJOIN with the paper's bytes, and the split that the cost model finds best for them."""
    return dataclasses.replace(as_published(best(size, workload, memory), NODE, **PAPERS_WAY), tuned=True)


def best(size: Size, workload: Workload, memory: int) -> Point:
    """Return X-HYBRIDJOIN with our bytes and the split that its cost model finds best."""
    point = hybrid(size, workload, memory, "x_hybridjoin")
    return dataclasses.replace(point, options={**point.options, "by_frequency": True})


def _point(size: Size, workload: Workload, memory: int, algorithm: str) -> Point:
    if algorithm == "x_hybridjoin":
        return untuned(size, workload, memory)
    return paper(size, workload, memory, algorithm)


def _tuned_point(size: Size, workload: Workload, memory: int, algorithm: str) -> Point:
    if algorithm == "x_hybridjoin":
        return best(size, workload, memory)
    return (hybrid if algorithm == "hybridjoin" else scan)(size, workload, memory, algorithm)


def experiments(size: Size) -> list[Experiment]:
    """Describe the experiments of the paper."""
    return [*_untuned(size), _pinned_use(size), *_tuned(size)]


def _untuned(size: Size) -> list[Experiment]:
    rows = size.pick([0.5, 2.0, 8.0], [0.5, 2.0, 8.0], [0.5, 2.0, 8.0])
    memories = size.some(MEMORIES)
    skews = size.pick([0.0, 0.25, 0.5, 0.75, 1.0], [0.0, 0.5, 1.0], [0.0, 0.5, 1.0])
    order = tuple(FOUR)
    log_rate = dataclasses.replace(RATE, log=True, zero=False)

    def samples(places: list[tuple[float, Workload, int]]) -> tuple[Sample, ...]:
        return few_tuned(
            Sample(name + setting, x, make(size, workload, memory, algorithm))
            for x, workload, memory in places for name, algorithm in FOUR.items()
            for setting, make in ((AS_PUBLISHED, _point), (TUNED, _tuned_point))
        )  # fmt: skip

    return [
        Experiment(
            id="xhybrid-3a", paper=PAPER, figure="Figure 3(a)", title="Memory",
            setup=f"R {zipf(size).rows / 1e6:g} M tuples, skew 1.", x=MEMORY, y=log_rate,
            samples=samples([(megabytes, zipf(size), budget(size, megabytes)) for megabytes in memories]),
            claims=(
                Claim("X-HYBRIDJOIN is above all others at all memories.", "significantly better",
                      **both_settings(above, *order, of_all=True, factor=SIGNIFICANTLY)),
                Claim("HYBRIDJOIN is slightly above MESHJOIN.", "consistently slightly better",
                      **both_settings(_slightly, "HYBRIDJOIN", "MESHJOIN")),
                Claim("HYBRIDJOIN is slightly above R-MESHJOIN.", "consistently slightly better",
                      **both_settings(_slightly, "HYBRIDJOIN", "R-MESHJOIN")),
            ),
            notes=_BYTES, taken=(disk_buffer(size), PARTITIONS),
        ),
        Experiment(
            id="xhybrid-3b", paper=PAPER, figure="Figure 3(b)", title="Size of R at fixed memory",
            setup=f"Memory {budget(size, 50) / 1e6:g} MB, skew 1.", x=ROWS, y=log_rate,
            samples=samples([(million, zipf(size, million), budget(size, 50)) for million in rows]),
            claims=(
                Claim("X-HYBRIDJOIN is above all others at all sizes of R.", "substantially better",
                      **both_settings(above, *order, of_all=True, factor=SIGNIFICANTLY)),
                Claim("HYBRIDJOIN has 70 % of X-HYBRIDJOIN's rate at 0.5 M tuples, falling to 50 % at 8 M.",
                      "0.7 → 0.5",
                      **both_settings(gain_changes, "HYBRIDJOIN", "X-HYBRIDJOIN", begin=(rows[0], 0.7),
                                      end=(rows[-1], 0.5), because=reading_left), cause="price"),
            ),
            notes=_BYTES, taken=(disk_buffer(size), PARTITIONS),
        ),
        Experiment(
            id="xhybrid-3c", paper=PAPER, figure="Figure 3(c)", title="Skew",
            setup=f"R {zipf(size).rows / 1e6:g} M tuples, memory {budget(size, 50) / 1e6:g} MB.",
            x=SKEW, y=log_rate,
            samples=samples([(skew, zipf(size, exponent=skew), budget(size, 50)) for skew in skews]),
            claims=(
                Claim("X-HYBRIDJOIN is above all others at every skew but 0.", "considerably better",
                      above(*published(*order), of_all=True, but=(0.0,), factor=SIGNIFICANTLY, because=small_part),
                      _tuned_pins(above(*tuned(*order), of_all=True, but=(0.0,), factor=SIGNIFICANTLY))),
                Claim("The improvement over HYBRIDJOIN grows with skew.", "more pronounced",
                      **both_settings(gain_goes, *order[:2], way="up")),
                Claim("At skew 0 X-HYBRIDJOIN is below MESHJOIN.", "by a constant factor",
                      **both_settings(above, "MESHJOIN", "X-HYBRIDJOIN", but=tuple(skews[1:]), because=uniform)),
                Claim("HYBRIDJOIN rises with skew.", "increases through locality (HYBRIDJOIN, §5)",
                      **both_settings(rises, "HYBRIDJOIN", at_least=SIGNIFICANTLY, because=locality)),
            ),
            notes=_BYTES, taken=(disk_buffer(size), PARTITIONS),
        ),
    ]  # fmt: skip


_SLIGHTLY = 0.5


def _slightly(first: str, second: str) -> Judge:
    """Judge that the first line is above the second, by at most half of X-HYBRIDJOIN's gain over the first."""

    def judge(outcome: Outcome) -> Verdict:
        verdict = above(first, second)(outcome)
        setting = first.removeprefix("HYBRIDJOIN")
        main = {x: a.y / b.y - 1.0 for x, a, b in outcome.pairs(f"X-HYBRIDJOIN{setting}", first)}
        slight = all(a.y / b.y - a.interval / b.y - 1.0 <= _SLIGHTLY * main[x]
                     for x, a, b in outcome.pairs(first, second) if x in main)  # fmt: skip
        if not verdict.holds or slight:
            return verdict
        reason = (
            "A tuple leaves HYBRIDJOIN's memory when it is matched, and MESHJOIN's only after a whole pass of R. This "
            "makes more than a slight difference."
        )
        return dataclasses.replace(verdict, holds=False, reason=reason)

    return judge


def _tuned_pins(judge: Judge) -> Judge:
    """Add to a verdict where the tuner pins no page: there X-HYBRIDJOIN is HYBRIDJOIN."""

    def judged(outcome: Outcome) -> Verdict:
        verdict = judge(outcome)
        none = [f"{found.x:g}" for found in outcome.line(f"X-HYBRIDJOIN{TUNED}")
                if not found.record["options"].get("pinned_pages")]  # fmt: skip
        if not none:
            return verdict
        text = f"{verdict.measured}; at {', '.join(none)} the tuner pins no page, so the join is HYBRIDJOIN"
        return dataclasses.replace(verdict, measured=text)

    return judged


def _pinned_use(size: Size) -> Experiment:
    memories = size.some([*MEMORIES, 250.0])

    def with_small(megabytes: float) -> Point:
        if not size.simulated:
            return untuned(size, zipf(size), budget(size, megabytes))
        point = small(size, zipf(size), budget(size, megabytes), "x_hybridjoin")
        return dataclasses.replace(point, options={**point.options, **PAPERS_WAY, "pinned_pages": small_pages(size)})

    return Experiment(
        id="xhybrid-3d", paper=PAPER, figure="Figure 3(d)", title="Tuples served by the pinned part",
        setup=f"R {zipf(size).rows / 1e6:g} M tuples, skew 1; in 4000 iterations.", x=MEMORY,
        y=Axis("tuples served by the pinned part"),
        samples=tuple(
            Sample("X-HYBRIDJOIN", megabytes, with_small(megabytes)) for megabytes in memories
        ),
        claims=(
            Claim("The pinned part serves more tuples with more memory.", "0.4 M → 2 M",
                  rises("X-HYBRIDJOIN", at_least=1.5, because=pinned_pages), standing="construction"),
            Claim("It serves more than 5 times as many at 250 MB as at 50 MB.", "0.4 M → more than 2 M", _five_times),
        ),
        metric="pinned_tuples", modelled=False,
        published=(Printed(50.0, 0.4e6), Printed(250.0, 2e6)) if size.published else (),
        notes="As published: 172 bytes per waiting tuple. The growth is judged: the paper's 0.4 M in 4000 iterations "
        "are 100 tuples per read, and this number depends on the size of the disk buffer.",
        taken=(
            Taken("both parts of the disk buffer", f"{small_pages(size)} pages each", "the 850 records of the authors' "
                  "later papers: with the 416 pages of the other figures the pinned part serves 61 M")
            if size.simulated else disk_buffer(size),
        ),
    )  # fmt: skip


def _five_times(outcome: Outcome) -> Verdict:
    line = outcome.line("X-HYBRIDJOIN")
    grown = line[-1].y / line[0].y
    holds = 4.5 <= grown <= 7.5  # 5 less a tenth; "more than 2 M" is read as at most 3 M
    return Verdict(
        holds, f"{grown:.2f}× from {line[0].x:g} to {line[-1].x:g} MB", "" if holds else pinned_pages(outcome)
    )


def _tuned(size: Size) -> list[Experiment]:
    rows = size.pick([0.5, 2.0, 8.0], [0.5, 2.0], [0.5, 2.0])
    memories = size.some(MEMORIES)
    names = (("X-HYBRIDJOIN, untuned", untuned), (SPLIT, tuned_as_published))
    lines = (SPLIT, "X-HYBRIDJOIN, untuned")
    notes = (
        "172 bytes per waiting tuple; untuned: both parts of the disk buffer are as large as HYBRIDJOIN's. With the "
        "prices of compiled code, for which the tuner chose."
    )
    return [
        Experiment(
            id="xhybrid-7a", paper=PAPER, figure="Figure 7(a)", title="Tuned and untuned, by size of R",
            setup=f"Memory {budget(size, 50) / MB:g} MB, skew 1.", x=ROWS,
            y=dataclasses.replace(RATE, log=True, zero=False),
            samples=with_more_seeds(
                (
                    Sample(name, million, make(size, zipf(size, million), budget(size, 50)))
                    for million in rows for name, make in names
                ),
                8.0 if size.published else -1.0,  # both rates are nearly equal there, so the intervals decide
            ),
            claims=(Claim("Tuned X-HYBRIDJOIN is above untuned at all sizes of R.", "significantly better",
                          above(*lines, factor=SIGNIFICANTLY, because=_flat)),),
            notes=notes, taken=(disk_buffer(size),), priced=False,
        ),
        Experiment(
            id="xhybrid-7b", paper=PAPER, figure="Figure 7(b)", title="Tuned and untuned, by memory",
            setup=f"R {zipf(size).rows / 1e6:g} M tuples, skew 1.", x=MEMORY, y=RATE,
            samples=tuple(
                Sample(name, megabytes, make(size, zipf(size), budget(size, megabytes)))
                for megabytes in memories for name, make in names
            ),
            claims=(Claim("Tuned X-HYBRIDJOIN is above untuned at all memories.", "significantly better",
                          above(*lines, factor=SIGNIFICANTLY, because=_flat)),),
            notes=notes, taken=(disk_buffer(size),), priced=False,
        ),
        Experiment(
            id="xhybrid-8", paper=PAPER, figure="Figure 8", title="Predicted and measured cost",
            setup=f"R {zipf(size).rows / 1e6:g} M tuples, skew 1.", x=MEMORY, y=RATE,
            samples=tuple(
                Sample(name, megabytes, make(size, zipf(size), budget(size, megabytes)))
                for megabytes in memories for name, make in names
            ),
            claims=(
                Claim("The predicted cost of X-HYBRIDJOIN is close to the measured one.", "closely resembles",
                      lambda outcome: by_its_formulas(outcome, 0.05), impossible=VARIANCES),
                Claim("Our own model is within 5 % of the measurement.", "not in the paper",
                      model_within(0.05, because=model_noise), standing="beside"),
            ),
            notes=notes, taken=(disk_buffer(size),), priced=False,
        ),
    ]  # fmt: skip


def _flat(outcome: Outcome) -> str:
    """Explain what tuning changes at each x position."""
    parts = []
    for x, tuned_one, plain in outcome.pairs(SPLIT, "X-HYBRIDJOIN, untuned"):
        options = tuned_one.record["options"]
        parts.append(
            f"{tuned_one.y / plain.y:.2f}× at {x:g}, with {options.get('partition_pages', 0):,} and "
            f"{options.get('pinned_pages', 0):,} pages, where the pinned part answers "
            f"{tuned_one.record['hit_ratio']:.0%} instead of {plain.record['hit_ratio']:.0%}"
        )
    return (
        f"Tuning gains {'; '.join(parts)}. Untuned, both parts have the {outcome.experiment.taken[0].value.split()[0]} "
        "pages that are best for HYBRIDJOIN at 50 MB and 2 M tuples. Rates hardly differ near the best pair "
        "(xhybrid-4)."
    )
