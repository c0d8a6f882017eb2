"""Claims as predicates: each function here makes the judge of a claim from the lines of an experiment.

A published figure is met within a tenth, on both sides: "7×" holds from 6.3× to 7.7×. Orders ("above", "falls") have no
tolerance except the noise: a difference covered by the confidence intervals does not make a claim fail, but a tie
everywhere is not "above". If a paper writes "significantly" or similar, the difference must be 5 % at least.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Literal, TypeAlias

from semistream.core.units import format_count
from semistream_lab.experiments.judge.outcome import Found, Outcome
from semistream_lab.experiments.judge.reasons import counted
from semistream_lab.experiments.spec import Verdict

__all__ = [
    "SIGNIFICANTLY",
    "Judge",
    "above",
    "decays",
    "ends_below",
    "falls",
    "falls_beyond",
    "flat",
    "gain",
    "gain_changes",
    "gain_goes",
    "interior",
    "model_within",
    "rises",
]

Judge: TypeAlias = Callable[[Outcome], Verdict]
Because: TypeAlias = str | Callable[[Outcome], str]

TOLERANCE = 0.1
"""Largest relative distance at which a published figure is still met."""
SIGNIFICANTLY = 1.05
"""Smallest ratio at which one line is significantly, substantially or considerably above another."""
_NOISE = 0.05
"""Largest relative difference that confidence intervals can excuse in an order."""


def _reason(because: Because, outcome: Outcome) -> str:
    return because if isinstance(because, str) else because(outcome)


def _verdict(holds: bool, measured: str, because: Because, outcome: Outcome, *series: str) -> Verdict:
    if holds:
        return Verdict(True, measured)
    reason = _reason(because, outcome)
    # on a real machine a reason from a model or from simulated time may be incomplete: add the counters
    if not reason or outcome.real:
        reason = f"{reason} {counted(outcome, series)}".strip()
    return Verdict(False, measured, reason)


def _facets(outcome: Outcome, facets: Collection[str] | None) -> list[str]:
    return [facet for facet in outcome.facets() if facets is None or facet in facets]


def _place(x: float, facet: str) -> str:
    return f"{x:g}, {facet}" if facet else f"{x:g}"


def _times(ratio: float) -> str:
    """Return a ratio in few digits."""
    if ratio >= 1000:
        return "> 1000"
    return f"{ratio:.0f}" if ratio >= 20 else f"{ratio:.2f}"


def above(
    *series: str,
    but: Collection[float] = (),
    factor: float = 1.0,
    of_all: bool = False,
    facets: Collection[str] | None = None,
    because: Because = "",
) -> Judge:
    """Judge that each line is above the next one everywhere, except at the x positions ``but``.

    With ``of_all`` the first line must be above all others. A line may be below by no more than the noise, up to 5 %.
    But each pair of lines needs at least one place where the difference is larger than the noise.
    """

    def judge(outcome: Outcome) -> Verdict:
        ratios: list[tuple[float, float, str, str]] = []
        clear: dict[str, bool] = {}
        for facet in _facets(outcome, facets):
            for higher, lower in [(series[0], other) for other in series[1:]] if of_all else itertools.pairwise(series):
                for x, first, second in outcome.pairs(higher, lower, facet):
                    if x not in but:
                        # the slack is limited, so that wide intervals do not excuse a point clearly below
                        noise = first.interval + second.interval
                        slack = min(noise, _NOISE * second.y)
                        name = f"{higher} : {lower}"
                        clear[name] = clear.get(name, False) or first.y - noise > factor * second.y
                        ratios.append(((first.y + slack) / (factor * second.y), first.y / second.y,
                                       f"{higher} : {lower}", _place(x, facet)))  # fmt: skip
        if not ratios:
            return Verdict(False, "nothing to compare", "no pair of measurements")
        least, most = min(ratios, key=lambda r: r[1]), max(ratios, key=lambda r: r[1])
        missed = [r for r in ratios if r[0] < 1.0]
        tied = [name for name, is_clear in clear.items() if not is_clear]
        text = f"{least[2]} {_times(least[1])} at {least[3]}"
        if most is not least:
            text += f", {most[2]} {_times(most[1])} at {most[3]}"
        if missed:
            text = f"not met at {len(missed)} of {len(ratios)} places; {text}"
        elif tied:
            text += f"; {tied[0]} is nowhere above by more than the intervals"
        elif least[1] < factor:
            text += "; differences below are within the intervals"
        if factor > 1.0:
            text += f" (required: at least {factor:g})"
        return _verdict(not missed and not tied, text, because, outcome, *series)

    return judge


def _best_gain(outcome: Outcome, first: str, second: str, x: float | None, facet: str) -> tuple[float, float]:
    pairs = [(at, a.y / b.y) for at, a, b in outcome.pairs(first, second, facet) if x is None or at == x]
    return max(pairs, key=lambda pair: pair[1])


def gain(
    first: str,
    second: str,
    published: float,
    *,
    x: float | None = None,
    facet: str = "",
    because: Because = "",
) -> Judge:
    """Judge that one line is about ``published`` times another, neither less nor more: at ``x``, or at its highest."""

    def judge(outcome: Outcome) -> Verdict:
        at, found = _best_gain(outcome, first, second, x, facet)
        text = f"{found:.2f}× at {_place(at, facet)}"
        modelled = [
            (a.model / b.model) for at_x, a, b in outcome.pairs(first, second, facet)
            if at_x == at and a.model and b.model
        ]  # fmt: skip
        if modelled:
            text += f" (model {modelled[0]:.2f}×)"
        return _verdict(_about(found, published), text, because, outcome, first, second)

    return judge


def _noise(a: Found, b: Found) -> float:
    """Return the relative uncertainty of the ratio of two numbers."""
    return a.interval / a.y + b.interval / b.y


def _about(found: float, published: float) -> bool:
    return abs(found - published) <= TOLERANCE * published


def gain_goes(first: str, second: str, *, way: Literal["up", "down"], facet: str = "", because: Because = "") -> Judge:
    """Judge that the ratio of two lines grows, or shrinks, from the beginning to the end, beyond the noise.

    All places count: the ratio at the end must be the highest, or the lowest, of all, beyond the noise. A loss that
    becomes smaller is not a gain: the larger of the ratios at both ends must be above 1, beyond the noise.
    """

    def judge(outcome: Outcome) -> Verdict:
        pairs = outcome.pairs(first, second, facet)
        if len(pairs) < 2:
            return Verdict(False, "nothing to compare", "fewer than two pairs of measurements")
        (x, a, b), (end_x, end_a, end_b) = pairs[0], pairs[-1]
        begin, end = a.y / b.y, end_a.y / end_b.y
        noise = begin * _noise(a, b) + end * _noise(end_a, end_b)
        top = max((begin, _noise(a, b)), (end, _noise(end_a, end_b)))
        holds = top[0] * (1.0 - top[1]) > 1.0 and (end > begin + noise if way == "up" else end < begin - noise)
        text = f"{begin:.2f}× at {_place(x, facet)}, {end:.2f}× at {_place(end_x, facet)}"
        sign = 1.0 if way == "up" else -1.0
        beyond = [at for at, c, d in pairs[1:-1] if sign * (c.y / d.y - end) > c.y / d.y * _noise(c, d) + noise]
        if holds and beyond:
            holds, text = False, f"{text}; the end is not the {'high' if way == 'up' else 'low'}est, but {beyond[0]:g}"
        return _verdict(holds, text, because, outcome, first, second)

    return judge


def gain_changes(
    first: str,
    second: str,
    begin: tuple[float, float],
    end: tuple[float, float],
    *,
    facet: str = "",
    because: Because = "",
) -> Judge:
    """Judge that the ratio of two lines changes from one published figure to another between two x positions."""

    def judge(outcome: Outcome) -> Verdict:
        _, at_begin = _best_gain(outcome, first, second, begin[0], facet)
        _, at_end = _best_gain(outcome, first, second, end[0], facet)
        grows = end[1] > begin[1]
        right_way = at_end > at_begin if grows else at_end < at_begin
        close = _about(at_begin, begin[1]) and _about(at_end, end[1])
        text = f"{at_begin:.2f}× at {begin[0]:g}, {at_end:.2f}× at {end[0]:g}"
        return _verdict(right_way and close, text, because, outcome, first, second)

    return judge


def _steps(line: Sequence[Found]) -> list[tuple[Found, Found]]:
    return list(itertools.pairwise(line))


def rises(series: str, *, facet: str = "", at_least: float = 1.0, because: Because = "") -> Judge:
    """Judge that a line never falls from left to right, and ends at least ``at_least`` times as high as it begins."""

    def judge(outcome: Outcome) -> Verdict:
        line = outcome.line(series, facet)
        drops = [b.x for a, b in _steps(line) if b.y + b.interval < a.y - a.interval]
        grown = line[-1].y / line[0].y if line[0].y else float("inf")
        text = f"{format_count(line[0].y)} at {line[0].x:g} to {format_count(line[-1].y)} at {line[-1].x:g}"
        if drops:
            text += f"; falls at {', '.join(f'{x:g}' for x in drops)}"
        return _verdict(not drops and grown >= at_least, text, because, outcome, series)

    return judge


def falls(series: str, *, facet: str = "", because: Because = "") -> Judge:
    """Judge that a line never rises from left to right, and ends below where it began."""

    def judge(outcome: Outcome) -> Verdict:
        line = outcome.line(series, facet)
        rise = [b.x for a, b in _steps(line) if b.y - b.interval > a.y + a.interval]
        text = f"{format_count(line[0].y)} at {line[0].x:g} to {format_count(line[-1].y)} at {line[-1].x:g}"
        if rise:
            text += f"; rises at {', '.join(f'{x:g}' for x in rise)}"
        return _verdict(not rise and line[-1].y < line[0].y, text, because, outcome, series)

    return judge


def flat(series: str, within: float, *, because: Because = "") -> Judge:
    """Judge that a line stays within a relative distance ``within`` of its first point, on both sides.

    A distance covered by the intervals is excused, up to ``within`` once more.
    """

    def judge(outcome: Outcome) -> Verdict:
        line = outcome.line(series)
        apart = [(found.y / line[0].y - 1.0, found.y / line[0].y * _noise(found, line[0])) for found in line]
        change, noise = max(apart, key=lambda one: abs(one[0]) - min(one[1], within))
        text = f"changes by {change:+.1%} at most" + (f" ± {noise:.1%}" if noise else "")
        return _verdict(abs(change) - min(noise, within) <= within, text, because, outcome)

    return judge


def decays(series: str, *, because: Because = "") -> Judge:
    """Judge that a line falls everywhere, to less than a twentieth of its first point."""

    def judge(outcome: Outcome) -> Verdict:
        fall = falls(series)(outcome)
        line = outcome.line(series)
        return _verdict(fall.holds and line[-1].y < line[0].y / 20, fall.measured, because, outcome)

    return judge


def interior(*series: str, facets: Collection[str] | None = None, because: Because = "") -> Judge:
    """Judge that the highest point of each line is at neither end, and above both ends by more than the noise."""

    def judge(outcome: Outcome) -> Verdict:
        found: list[str] = []
        holds = True
        for facet in _facets(outcome, facets):
            for name in series:
                line = outcome.line(name, facet)
                if not line:
                    continue
                best = max(line, key=lambda one: one.y)
                ends = [one for one in (line[0], line[-1]) if one.y + one.interval >= best.y - best.interval]
                holds = holds and not ends
                label = name if len(series) > 1 or not facet else facet
                found.append(f"{label}: best at {best.x:g}" if len(outcome.names()) > 1 or facet else f"at {best.x:g}")
        return _verdict(holds, "; ".join(found), because, outcome, *series)

    return judge


def falls_beyond(series: str, published: float, *, because: Because = "") -> Judge:
    """Judge that a line falls at every step beyond a published x position, by more than the noise in all."""

    def judge(outcome: Outcome) -> Verdict:
        line = [found for found in outcome.line(series) if found.x >= published]
        text = ", ".join(f"{format_count(one.y)} at {one.x:g}" for one in outcome.line(series))
        rise = any(b.y - b.interval > a.y + a.interval for a, b in _steps(line))
        ends = len(line) > 1 and line[0].y - line[0].interval > line[-1].y + line[-1].interval
        return _verdict(ends and not rise, text, because, outcome, series)

    return judge


def ends_below(series: str, *, facet: str = "", because: Because = "") -> Judge:
    """Judge that a line ends below its highest point, by more than the noise."""

    def judge(outcome: Outcome) -> Verdict:
        line = outcome.line(series, facet)
        best, last = max(line, key=lambda one: one.y), line[-1]
        text = f"{format_count(best.y)} at {best.x:g}, {format_count(last.y)} at {last.x:g}"
        return _verdict(best.y - best.interval > last.y + last.interval, text, because, outcome, series)

    return judge


def model_within(within: float, *series: str, because: Because = "") -> Judge:
    """Judge that the cost model is everywhere within a relative distance ``within`` of the measurement.

    A distance covered by the confidence interval is excused, up to ``within`` once more. A wider interval would let
    any model pass. Models are compared with compiled code, whatever the prices of the paper's machine are.
    """

    def judge(outcome: Outcome) -> Verdict:
        outcome = outcome.compiled
        worst, text, seen = -1.0, "", 0
        for facet in outcome.facets():
            for name in series or outcome.names():
                for found in outcome.line(name, facet):
                    if found.model:
                        seen += 1
                        apart = found.y / found.model - 1
                        beyond = abs(apart) - min(found.interval / found.model, within)
                        if beyond > worst:
                            noise = f" ± {found.interval / found.model:.1%}" if found.interval else ""
                            worst, text = beyond, f"{apart:+.1%}{noise} at most ({name} at {_place(found.x, facet)})"
        if not seen:
            return Verdict(False, "no model", "no cost model for what was measured")
        return _verdict(worst <= within, text, because, outcome)

    return judge
