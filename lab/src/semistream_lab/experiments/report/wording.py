"""Texts that the HTML page and the Markdown report share."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from semistream.core.units import format_bytes, format_count
from semistream_lab.experiments.experiment import Claim
from semistream_lab.experiments.judge.machine_prices import JAVA_MYSQL_2010
from semistream_lab.experiments.judge.verdicts import Judged
from semistream_lab.experiments.report.summary import counted
from semistream_lab.experiments.spec import Verdict

__all__ = [
    "MODELS", "SummaryRow", "conditions", "equal_words", "introduction", "second_words", "setup_of", "shown",
    "summary_rows", "word_of",
]  # fmt: skip

Record = dict[str, Any]
_JAVA = JAVA_MYSQL_2010

MODELS = (
    "Models against measurements: the distance of the measured service rate from what the join's cost model gives for "
    "the same split of memory, over all points of the experiments that draw a model. On the simulated device both use "
    "the same prices per operation. The measurement counts the operations; the model derives their number."
)


_WORDS = {"construction": "by construction", "assumption": "assumed", "repeated": "judged above", "beside": ""}


class SummaryRow(NamedTuple):
    """One claim in the table."""

    id: str
    claim: str
    published: str
    measured: str
    verdict: str
    equal: str
    """The verdict with equal bytes and compiled code, in a few words."""
    tuned: str
    """What tuning changes, in a few words."""


def word_of(claim: Claim, verdict: Verdict) -> str:
    """Return the word for a claim: ``holds``, or ``fails`` with its cause, or why it is not counted."""
    word = "holds" if verdict.holds else f"fails: {verdict.cause}" if verdict.cause else "fails"
    if claim.counted:
        return word
    return _WORDS[claim.standing] or ("true" if verdict.holds else "not true")


def second_words(claim: Claim, verdict: Verdict, first: str = "") -> str:
    """Return the verdict in the second setting; empty if it was not measured.

    ``first``: a name not to repeat.
    """
    if verdict.tuned is None:
        return ""
    named = "" if claim.second == first else f"{claim.second}, it "
    return f"{named}{_held(verdict.tuned)}"


def equal_words(verdict: Verdict) -> str:
    """Return the verdict with equal bytes for all joins, in compiled code; empty if it was not measured."""
    return "" if verdict.equal is None else _held(verdict.equal)


def _held(verdict: Verdict) -> str:
    return f"{'holds' if verdict.holds else 'fails'}: {verdict.measured}"


def setup_of(one: Judged) -> str:
    """Return the setup of an experiment.

    On a real device this includes the sizes of R and memory used there.
    """
    experiment = one.experiment
    text = f"{experiment.figure}. {experiment.setup} {experiment.notes}".strip()
    points = [sample.point for sample, _ in one.outcome.measured()]
    if not (one.outcome.real and points):
        return text
    rows = _range([point.workload.rows for point in points], format_count)
    memory = _range([point.memory for point in points], format_bytes)
    return f"{text} Here: R of {rows} tuples, {memory} of memory."


def _range(values: Sequence[int], shown: Callable[[int], str]) -> str:
    """Return the smallest and the largest value as text.

    >>> _range([3, 1, 2], str), _range([5, 5], str)
    ('1 to 3', '5')
    """
    least, most = shown(min(values)), shown(max(values))
    return least if least == most else f"{least} to {most}"


def shown(judged: Sequence[Judged]) -> list[Judged]:
    """Return the experiments with at least one measurement: only these are in the report."""
    return [one for one in judged if one.outcome.complete or one.outcome.measured()]


def summary_rows(judged: Sequence[Judged]) -> Iterator[SummaryRow]:
    """Yield one row per claim."""
    for one in judged:
        name = one.experiment.id
        if not one.outcome.complete:
            for claim in one.experiment.claims:
                yield SummaryRow(name, claim.text, claim.published, "", "not run", "", "")
        for claim, verdict in one.verdicts:
            yield SummaryRow(
                name,
                claim.text,
                claim.published,
                verdict.measured,
                word_of(claim, verdict),
                equal_words(verdict),
                second_words(claim, verdict, "tuned"),
            )


def introduction(judged: Sequence[Judged]) -> list[str]:
    """Return the first paragraphs."""
    here = shown(judged)
    rows = counted(here)
    holds = sum(verdict.holds for _, _, verdict in rows)
    others = sum(not claim.counted for one in here for claim, _ in one.verdicts)
    text = (
        f"{len(here)} experiments of five papers, {len(rows)} claims: {holds} hold, {len(rows) - holds} fail. "
        "A claim is judged as published: the paper's way of measuring, its contestants as their authors ran them, its "
        "parameters, and the prices of its machine. A figure is met if the measurement is within a tenth of it, on "
        "both sides. *Equal bytes* is the same claim with the same bytes per tuple for all, in compiled code; *tuned* "
        "shows what tuning every join changes. A failure has a cause: the paper (its own model, its arithmetic, or a "
        "measurement under its conditions contradicts it), the prices of a machine that is not known, or ours. "
    )
    text += (
        "Sizes in claims and on axes are the papers'. The sizes of R and memory used here are given with each "
        "experiment. This report says what was measured; the simulated report explains why a claim fails at the "
        "papers' sizes on their disk."
        if any(one.outcome.real for one in here)
        else "If a claim fails, the reason is derived from the cost model or from what was counted in the run."
    )
    if others:
        text += (
            f" {others} more sentences are shown but not counted: what holds by construction, assumptions of a model, "
            "repetitions, and statements that are not a paper's claim."
        )
    paragraphs = [text]
    if any(_scale(one) == "test" for one in here):
        paragraphs.append(
            "This run is of the small scale, a tenth to a hundredth of the papers' sizes with few points. It shows "
            "that everything runs. Its verdicts do not apply to the papers' sizes."
        )
    missing = [one.experiment.id for one in judged if one.outcome.missing]
    if missing:
        left_out = "they are left out or not judged" if len(missing) > 1 else "it is left out or not judged"
        paragraphs.append(
            f"This run is not complete. {len(missing)} of {len(judged)} experiments lack points; {left_out} "
            f"({', '.join(missing)}). Run the same command again to measure the missing points."
        )
    elsewhere = [one for one in judged if not one.outcome.complete and not one.outcome.missing]
    if elsewhere:
        names = ", ".join(one.experiment.id for one in elsewhere)
        paragraphs.append(f"Not measured on this device: {names} ({elsewhere[0].outcome.skipped[0][1]}).")
    return paragraphs


def _scale(one: Judged) -> str:
    """Return the scale that results were measured at."""
    found = one.outcome.measured()
    return str(found[0][1].record.get("environment", {}).get("scale", "")) if found else ""


def conditions(judged: Sequence[Judged], environments: Sequence[Record], models_of: str | None = None) -> list[str]:
    """Return the device, machine and versions of the results as a Markdown list."""
    if not environments:
        return ["Nothing has been measured yet."]
    last = environments[-1]
    machine, constants = last["machine"], last["constants"]
    lines = [f"- device: {last['device']}, scale: {last['scale']}, commit {last['commit']}, {last['began']}"]
    if last["device"] == "simulated":
        lines += [
            f"- simulated: {_costs(constants)}",
            "- operations are counted by the joins themselves; time is disk time plus the price of these operations",
            f"- as published, all papers but SSIJ's have the prices of {_JAVA.what}: operations cost "
            f"{_JAVA.processor:g} times as much, a seek {_JAVA.seek * 8.5:.1f} ms, and OP-CACHEJOIN loads "
            f"{_JAVA.loads} buffers at once; "
            "plots and numbers of tuned joins and all models have the prices above",
        ]
    else:
        lines += [
            f"- {machine['cpu']}, {machine['cores']} cores, {format_bytes(machine['memory_bytes'])}, "
            f"{machine['kernel']}",
            f"- prices in the models, measured on this machine before the first point: {_costs(constants)}",
            *_paces(judged),
        ]
    commits = list(dict.fromkeys(environment["commit"] for environment in environments))
    if len(commits) > 1:
        lines.append(f"- points were measured in several runs, at the commits {', '.join(commits)}")
    if models_of is not None:
        lines.append(f"- the models' rates were computed for these points afterwards, at commit {models_of}")
    versions = ", ".join(f"{name} {machine[name]}" for name in ("semistream", "python", "numpy", "numba", "pyarrow"))
    lines.append(f"- {versions}")
    return lines


def _paces(judged: Sequence[Judged]) -> list[str]:
    """Describe how much the machine's speed varied between points, if it was recorded."""
    points = {sample.point.digest(): found.record for one in judged for sample, found in one.outcome.measured()}
    records = [record for record in points.values() if "pace" in record]
    if not records:
        return []
    paces = [record["pace"] for record in records]
    lines = [
        f"- the machine is shared: a fixed piece of work took up to {max(paces) / min(paces):.1f} times as long before "
        f"one point as before another; the median is {statistics.median(paces) / min(paces):.1f} times the minimum"
    ]
    if again := [record["spoilt"] for record in records if record.get("spoilt")]:
        lines.append(
            "- if the machine's host gave more than a fiftieth of a window's time to other machines, more windows were "
            "measured, and only the least disturbed ones count: "
            f"{sum(again)} more windows, at {len(again)} of {len(records)} points"
        )
    return lines


def _costs(constants: Record) -> str:
    """Describe the prices of reads and operations."""
    return (
        f"a seek costs {_seconds(constants['seek_seconds'])} ({_seconds(constants['queued_seek_seconds'])} each if "
        f"many reads are requested together), a page of {constants['page_bytes']} bytes "
        f"{_seconds(constants['transfer_seconds'])}; in ns, a look-up costs {constants['probe']:.3g}, a result "
        f"{constants['emit']:.3g}, reading a stream tuple {constants['admit']:.3g}, adding it to the waiting tuples "
        f"{constants['append']:.3g}, removing it {constants['evict']:.3g}, recording a frequency "
        f"{constants['record']:.3g}, buffering {constants['buffer']:.3g}, the fixed cost of an iteration "
        f"{constants.get('turn', 0.0):.3g}"
    )


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"
