"""Verdicts of whole experiments: ``holds``, ``fails`` or ``not run``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from semistream_lab.experiments.experiment import Claim, Experiment
from semistream_lab.experiments.judge.machine_prices import PRICES_OF
from semistream_lab.experiments.judge.outcome import Outcome
from semistream_lab.experiments.spec import Verdict

__all__ = ["Judged", "Status", "judge", "statuses"]

Status = Literal["holds", "fails", "not run"]


@dataclass(frozen=True)
class Judged:
    """An experiment with its results and the verdict on each of its claims."""

    experiment: Experiment
    outcome: Outcome
    verdicts: list[tuple[Claim, Verdict]]

    @property
    def status(self) -> Status:
        """``holds`` if every counted claim holds; ``not run`` if a point is missing."""
        if not self.outcome.complete:
            return "not run"
        return "holds" if all(verdict.holds for claim, verdict in self.verdicts if claim.counted) else "fails"


def judge(experiments: Iterable[Experiment], results: Mapping[str, dict[str, Any]]) -> list[Judged]:
    """Judge the claims of experiments with the results that exist."""
    judged = []
    for experiment in experiments:
        outcome = Outcome(experiment, results)
        if experiment.priced and experiment.paper in PRICES_OF and not outcome.real:
            outcome = Outcome(experiment, results, PRICES_OF[experiment.paper])
        verdicts = [(claim, _verdict(claim, outcome)) for claim in experiment.claims] if outcome.complete else []
        judged.append(Judged(experiment, outcome, verdicts))
    return judged


def _verdict(claim: Claim, outcome: Outcome) -> Verdict:
    verdict = claim.judge(outcome)
    equal = None
    if claim.equal is not None:
        equal = claim.equal(outcome)
    elif outcome.prices is not None:
        equal = claim.judge(outcome.compiled)
    cause = "" if verdict.holds else claim.cause
    if outcome.real:  # reasons and causes apply to the papers' sizes on the papers' disk, where reads dominate the time
        verdict, cause = dataclasses.replace(verdict, reason=""), ""
    tuned = None if claim.tuned is None else claim.tuned(outcome)
    return dataclasses.replace(verdict, tuned=tuned, equal=equal, cause=cause)


def statuses(judged: Iterable[Judged]) -> dict[str, Status]:
    """Return the status of each experiment, by id."""
    return {one.experiment.id: one.status for one in judged}
