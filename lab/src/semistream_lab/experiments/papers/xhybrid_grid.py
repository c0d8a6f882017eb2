"""X-HYBRIDJOIN's disk buffer and its two parts: Figures 4 and 6."""

from __future__ import annotations

import dataclasses
from typing import Any

from semistream.costs import Constants, load_constants
from semistream.costs.basis.constants import DEFAULT
from semistream_lab.experiments.experiment import Claim, Experiment
from semistream_lab.experiments.judge.analysis import PinnedTurn
from semistream_lab.experiments.judge.claims import interior, model_within
from semistream_lab.experiments.judge.outcome import Outcome
from semistream_lab.experiments.papers.cmesh import RATE
from semistream_lab.experiments.papers.hybrid import NODE, budget, hybrid, zipf
from semistream_lab.experiments.papers.settings import as_published
from semistream_lab.experiments.scales import Size
from semistream_lab.experiments.spec import PAGE_BYTES, Axis, Point, Sample, Verdict

__all__ = ["PAPER", "PAPERS_WAY", "VARIANCES", "by_its_formulas", "experiments", "model_noise", "papers_rate"]

PAPER = "X-HYBRIDJOIN"
PAPERS_WAY: dict[str, Any] = {"by_frequency": True, "scan_pinned": True}
"""Pages are pinned permanently, and every iteration looks up all their rows in the hash table."""


def experiments(size: Size) -> list[Experiment]:
    """Describe the experiments."""
    swappable = size.pick([104, 208, 416, 832], [5, 20, 80], [1, 8, 64])
    pinned = size.pick([0, 208, 832, 1664, 3328], [0, 20, 80, 320], [0, 64, 512, 2048])
    workload, memory = zipf(size), budget(size, 50)

    def point(k: int, pages: int) -> Point:
        made = hybrid(size, workload, memory, "x_hybridjoin", pages=k)
        # whole laps: with small reads each lap has many iterations, and each looks up all pinned rows
        made = dataclasses.replace(made, probes=1 << 40, windows=size.pick(3, 3, 5))
        return as_published(made, NODE, **PAPERS_WAY, pinned_pages=pages)

    middle_pinned, middle_swappable = pinned[-3 if len(pinned) > 4 else -2], swappable[-2]
    ours = Claim("Our own model is within 5 % of the measurement.", "not in the paper",
                 model_within(0.05, because=model_noise), standing="beside")  # fmt: skip
    setup = f"R {workload.rows / 1e6:g} M tuples, memory {memory / 1e6:g} MB, skew 1; 172 bytes per waiting tuple."
    return [
        Experiment(
            id="xhybrid-4", paper=PAPER, figure="Figure 4", title="Both parts of the disk buffer",
            setup=setup, x=Axis("non-swappable part d_N [pages]", format="~g"), y=RATE,
            samples=tuple(Sample(str(k), pages, point(k, pages)) for k in swappable for pages in pinned),
            claims=(Claim("There is one best pair of sizes, with both parts between their ends.", "one optimum",
                          _one_optimum),),
            chart="heat", facet_title="swappable part d_S [pages]",
        ),
        Experiment(
            id="xhybrid-6a", paper=PAPER, figure="Figure 6(a)", title="Tuning the swappable part",
            setup=f"{setup} Non-swappable part: {middle_pinned} pages.",
            x=Axis("swappable part d_S [pages]", log=True, format="~g"), y=RATE,
            samples=tuple(Sample("X-HYBRIDJOIN", k, point(k, middle_pinned)) for k in swappable),
            claims=(Claim("Model and measurement agree within about 1 %.", "0.5 %", by_its_formulas,
                          impossible=VARIANCES), ours),
        ),
        Experiment(
            id="xhybrid-6b", paper=PAPER, figure="Figure 6(b)", title="Tuning the non-swappable part",
            setup=f"{setup} Swappable part: {middle_swappable} pages.",
            x=Axis("non-swappable part d_N [pages]", format="~g"), y=RATE,
            samples=tuple(Sample("X-HYBRIDJOIN", pages, point(middle_swappable, pages)) for pages in pinned),
            claims=(
                Claim("Model and measurement agree within about 1 %.", "0.6 %", by_its_formulas,
                      impossible=VARIANCES),
                ours,
                Claim("Some size between the ends is best.", "rises, then falls",
                      interior("X-HYBRIDJOIN", because=_within_noise)),
            ),
        ),
    ]  # fmt: skip


_WITHIN = 0.015
VARIANCES = "Eq. 9 uses variances, N·p·(1 - p), in place of the tuples that an iteration serves, N·p"


def _turn(point: Point) -> PinnedTurn:
    """Return an iteration with the paper's bytes, by its formulas."""
    workload, pages = point.workload, [point.options[name] for name in ("partition_pages", "pinned_pages")]
    rows = [workload.tuples_of(count) for count in pages]
    waiting = (point.memory - PAGE_BYTES * sum(pages)) / (8 * workload.stream_bytes + NODE)
    return PinnedTurn(waiting, rows[1], rows[0], workload.rows)


def papers_rate(point: Point, constants: Constants | None = None) -> float:
    """Return the rate by the paper's formulas (Eq. 5, 6 and 9); without ``constants``, with simulated prices."""
    c, turn = constants or dataclasses.replace(load_constants(DEFAULT), seek_seconds=point.seek_seconds), _turn(point)
    pages = float(point.options["partition_pages"])
    tuple_costs = c.emit + c.evict + c.admit + c.append
    loop = 1e-9 * ((turn.pinned + turn.swapped) * c.probe + turn.matches * tuple_costs)
    return turn.matches / (c.seek_seconds + pages * c.transfer_seconds + loop)


def by_its_formulas(outcome: Outcome, within: float = _WITHIN) -> Verdict:
    """Judge that the paper's own model agrees with the measurement."""
    outcome = outcome.compiled  # the formulas get the same prices
    apart = []
    for sample, found in outcome.measured():
        known = found.record.get("environment", {}).get("constants")
        point = sample.point
        if point.tuned:  # use the sizes that the tuner chose
            chosen = {name: found.record["options"].get(name, 0) for name in ("partition_pages", "pinned_pages")}
            point = dataclasses.replace(point, options={**point.options, **chosen})
        model = papers_rate(point, Constants(**known) if known and outcome.real else None)
        apart.append((found.y / model - 1.0, min(found.interval / model, within), point, found))
    worst = max(apart, key=lambda one: abs(one[0]) - one[1])
    least, most = (1.0 + end(one[0] for one in apart) for end in (min, max))
    text = f"{least:.2f} to {most:.2f} times what Eq. 6 and 9 give"
    if abs(worst[0]) - worst[1] <= within:
        return Verdict(True, text)
    turn, counts = _turn(worst[2]), worst[3].record["counts"]
    reason = (
        f"At {worst[3].x:g} {_unit(outcome)} Eq. 9 gives {turn.matches:,.0f} tuples per iteration, and "
        f"{counts['rows_done'] / max(1, counts['reads']):,.0f} are served. It uses the variance of a binomial count, "
        "N·p·(1 - p), in place of its mean, N·p: by this a pinned part that answers p_N of the entering tuples serves "
        f"w·p_N·(1 - p_N) of them. With N·p it would give {turn.expected:,.0f}. The rest of the difference comes from "
        "frequent partitions, which are read more often than others."
    )
    return Verdict(False, text, reason)


def _unit(outcome: Outcome) -> str:
    return outcome.experiment.x.title.partition("[")[2].rstrip("]")


def model_noise(outcome: Outcome) -> str:
    """Explain where the model is furthest off, and how certain the measurement is."""
    points = [found for name in outcome.names() for found in outcome.line(name)]
    widest = max(found.interval / found.y for found in points)
    apart = max((found for found in points if found.model), key=lambda found: abs(found.y / (found.model or 1.0) - 1))
    worst = (
        f"{apart.x:g} ({apart.y / (apart.model or 1.0) - 1:+.1%}, a read serves "
        f"{apart.record['counts']['appended'] / max(1, apart.record['counts']['reads']):,.0f} tuples)"
    )
    return (
        "Our model derives rates for any exponent from the order in which the queue is served, not from a formula "
        f"fitted to this case. It is furthest off at {worst}. The confidence interval of the measurement is up to "
        f"±{widest:.1%}."
    )


def _within_noise(outcome: Outcome) -> str:
    line = outcome.line("X-HYBRIDJOIN")
    best = max(line, key=lambda found: found.y)
    widest = max(found.interval / found.y for found in line)
    return (
        f"The highest point, at {best.x:g}, is {best.y / line[0].y:.2f} times the first and {best.y / line[-1].y:.2f} "
        f"times the last; intervals are up to ±{widest:.0%} wide."
    )


def _one_optimum(outcome: Outcome) -> Verdict:
    """Judge that there is one peak: from every other pair a path of increasing rates leads to the best pair."""
    grid = {(float(name), found.x): found for name in outcome.names() for found in outcome.line(name)}
    across = sorted({k for k, _ in grid})
    down = sorted({pages for _, pages in grid})
    best = max(grid, key=lambda place: grid[place].y)
    peaks = []
    for (k, pages), found in grid.items():
        i, j = across.index(k), down.index(pages)
        around = [
            grid[across[a], down[b]] for a in (i - 1, i, i + 1) for b in (j - 1, j, j + 1)
            if (a, b) != (i, j) and 0 <= a < len(across) and 0 <= b < len(down) and (across[a], down[b]) in grid
        ]  # fmt: skip
        if all(found.y - found.interval > other.y + other.interval for other in around):
            peaks.append((k, pages))
    inside = across[0] < best[0] < across[-1] and down[0] < best[1] < down[-1]
    text = f"best at d_S = {best[0]:g}, d_N = {best[1]:g} pages; {max(1, len(peaks))} peak"
    holds = inside and len(peaks) <= 1
    other = {found.y / grid[best].y: place for place, found in grid.items() if place != best}
    next_best, place = max(other.items())
    reason = (
        f"The optimum is flat: d_S = {place[0]:g} and d_N = {place[1]:g} reach {next_best:.1%} of it. Measured are d_S "
        f"from {across[0]:g} to {across[-1]:g} and d_N from {down[0]:g} to {down[-1]:g} pages."
    )
    return Verdict(holds, text, "" if holds else reason)
