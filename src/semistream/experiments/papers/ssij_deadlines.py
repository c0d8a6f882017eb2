"""SSIJ §VI-D: deadlines and bursts, Figure 16 and Table III."""

from __future__ import annotations

import dataclasses

from semistream.experiments.experiment import Claim, Experiment
from semistream.experiments.judge.claims import falls, rises
from semistream.experiments.judge.outcome import Outcome
from semistream.experiments.papers.ssij_setups import PAPER, SHORTER, locality, published_thresholds
from semistream.experiments.scales import Size
from semistream.experiments.spec import Axis, Point, Sample, Verdict, Workload

__all__ = ["experiments"]


def experiments(size: Size) -> list[Experiment]:
    """Describe the experiments."""
    return [_deadlines(size), _bursts(size)]


def _driven(size: Size, workload: Workload, memory: float, options: dict[str, object]) -> Point:
    # as in the paper, the stream is over after 20 intervals, and what memory holds of it then need not be served
    tuples = 20 * workload.interval_rows
    thresholds = published_thresholds(size.pick(0.025, 0.005, 0.0125), memory, workload)
    return Point(
        task="sustained", workload=workload, algorithm="ssij", memory=int(memory),
        options={"input_limit": int(memory / 40), **thresholds, **options},
        seek_seconds=0.0085 * workload.rows / 80e6,
        settings={"tuples": tuples, "between": [2e3, 2e6]},
    )  # fmt: skip


def _deadlines(size: Size) -> Experiment:
    part = size.pick(0.025, 0.005, 0.0125)
    workload = Workload(rows=int(40_000_000 * part), row_bytes=128, fill=0.8)
    memory = 0.075 * workload.nbytes
    deadlines = size.pick([10.0, 20.0, 30.0, 60.0, 90.0, 120.0], [20.0, 60.0], [20.0, 60.0])

    def point(deadline: float) -> Point:
        made = _driven(size, workload, memory, {"deadline": deadline * part})
        settings = {"tuples": size.pick(150_000, 20_000, 50_000), "between": [50.0, 5e5], "warm": 0.4}
        return dataclasses.replace(made, seek_seconds=0.0085 * part, settings=settings)

    slow = Point(
        task="delays", workload=workload, algorithm="meshjoin", memory=int(memory), seek_seconds=0.0085 * part,
        options={"seek_pages": round(0.0085 * part / (8192 / 100e6), 2)}, windows=3,
        settings={"rate": 5500.0, "tuples": int(1.15 * memory / 58), "window": [0.01, 0.1], "results": True},
    )  # fmt: skip
    return Experiment(
        id="ssij-16", paper=PAPER, figure="Figure 16", title="Deadlines",
        setup=f"R {workload.rows / 1e6:g} M tuples, memory 7.5 % of R, skew 1.",
        x=Axis(f"deadline [s, × {part:g}]", format="~g"), y=Axis("highest rate that meets all deadlines [tuples/s]"),
        samples=(
            *(Sample("SSIJ", deadline, point(deadline)) for deadline in deadlines),
            Sample("MESHJOIN", 5500.0, slow, aside=True),
        ),
        claims=(
            Claim("The rate rises with the deadline.", "550 tuples/s at 10 s to 22 000 at 120 s", _rate_rises),
            Claim("Deadlines are met.", "met", _met),
            Claim("At 5500 tuples/s MESHJOIN's delay is an order above SSIJ's.", "9 min and 1 min", _order_above),
        ),
        metric="sustained", modelled=False,
        notes=f"R, memory, seek and deadlines are {part:g} of the paper's; rates are then the paper's own."
        if size.published else "",
    )  # fmt: skip


def _rate_rises(outcome: Outcome) -> Verdict:
    return rises("SSIJ", at_least=2.0, because=_few_phases)(outcome)


def _few_phases(outcome: Outcome) -> str:
    line = outcome.line("SSIJ")
    phases = [found.record["join_phases"] for found in line if "join_phases" in found.record]
    none = [f"{found.x:g} s" for found in line if "join_phases" not in found.record]
    text = (
        f"A rate is found by bisection over runs of {min(phases)} to {max(phases)} join phases; with few phases, where "
        "the run ends within one decides whether a rate counts as sustained, which is more than the steps between "
        "neighbouring deadlines."
    )
    if none:
        text += f" At {', '.join(none)} no rate of the search met the deadline: the point is the search's lower end."
    return text


def _met(outcome: Outcome) -> Verdict:
    late = sum(found.record.get("late", 0) for found in outcome.line("SSIJ"))
    reason = (
        "Phases begin early enough by what phases of a similar size have cost so far, so one that costs more than any "
        "before it ends late."
    )
    return Verdict(late == 0, f"{late} late tuples at the rates shown", "" if late == 0 else reason)


def _order_above(outcome: Outcome) -> Verdict:
    slow = outcome.aside.get("MESHJOIN")
    able = [found.x for found in outcome.line("SSIJ") if found.y >= 5500.0]
    if not able or slow is None:
        return Verdict(False, "SSIJ does not reach 5500 tuples/s", "the rate is bound by the disk")
    # deadlines are scaled with R
    factor = outcome.experiment.samples[0].point.options["deadline"] / outcome.experiment.samples[0].x
    ratio = slow["total"] / (able[0] * factor)
    text = (
        f"at 5500 tuples/s MESHJOIN takes {slow['total'] / factor:.0f} s on average, SSIJ at most {able[0]:g} s "
        f"(at the paper's size): {ratio:.0f}×"
    )
    return Verdict(ratio >= 9.0 * 0.9, text, "" if ratio >= 8.1 else "MESHJOIN's memory holds fewer tuples")


def _bursts(size: Size) -> Experiment:
    workload = dataclasses.replace(locality(size), interval_rows=1 << 40)
    memory = 0.1 * workload.nbytes
    bursts = [0.1, 0.25, 0.5, 0.7]
    base = Point(
        task="burst", workload=workload, algorithm="ssij", memory=int(memory),
        seek_seconds=0.0085 * workload.rows / 80e6,
        options={"input_limit": int(memory / 40), **published_thresholds(workload.rows / 80e6, memory, workload)},
    )  # fmt: skip
    settings = {"tuples": size.pick(1_000_000, 100_000, 200_000), "most": size.pick(20_000_000, 2_000_000, 4_000_000)}
    return Experiment(
        id="ssij-t3", paper=PAPER, figure="Table III", title="Bursts beyond the nominal rate",
        setup=f"R {workload.rows / 1e6:g} M tuples, memory 10 % of R, within one interval of a stream with locality.",
        x=Axis("burst above the nominal rate [%]", format="~g"), y=Axis("time until memory overflows [s]", format="~g"),
        samples=tuple(
            Sample("dynamic memory", 100 * burst, dataclasses.replace(base, settings={**settings, "burst": burst}))
            for burst in bursts
        ),
        claims=(Claim("Bursts are sustained for a time that shrinks with the burst.",
                      "700 ms at +10 %, 225 ms at +70 %", falls("dynamic memory")),),
        metric="duration", modelled=False, notes=SHORTER if size.published else "",
    )  # fmt: skip
