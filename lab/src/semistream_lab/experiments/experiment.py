"""An experiment: a figure of a paper, and the claims that are judged with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from semistream_lab.experiments.judge.outcome import Outcome
from semistream_lab.experiments.spec import Figure, Verdict

__all__ = ["Cause", "Claim", "Experiment", "Standing"]

Standing = Literal["claim", "construction", "assumption", "repeated", "beside"]
"""Whether a sentence counts as a claim.

``claim``: a claim of a paper, judged and counted. ``construction``: it holds by construction of our joins, prices or
data, so it is shown and not counted. ``assumption``: an assumption of a model. ``repeated``: already judged with the
same measurement. ``beside``: not a paper's claim, but worth knowing.
"""
Cause = Literal["paper", "price", "ours"]
"""Why a claim fails. ``paper``: the paper's own model or arithmetic contradicts it, or a measurement under the paper's
conditions does. ``price``: it depends on unknown prices of the paper's machine. ``ours``: our setting, data or code."""


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper in a form that code can check: one sentence, one judge."""

    text: str
    published: str
    """The number in the paper, or its words."""
    judge: Callable[[Outcome], Verdict]
    """Judges the measurement as published."""
    tuned: Callable[[Outcome], Verdict] | None = None
    """Judges the same claim in the second setting."""
    second: str = "tuned"
    """Name of the second setting."""
    standing: Standing = "claim"
    impossible: str = ""
    """If the claim fails: why the published figure cannot be right, in a few words. Empty if it could be right."""
    equal: Callable[[Outcome], Verdict] | None = None
    """Judges the same claim with equal bytes for all contestants. None: ``judge``, with the prices of compiled code."""
    cause: Cause = "paper"
    """The cause if the claim fails."""

    @property
    def counted(self) -> bool:
        """Whether the claim is included in the counts of claims that hold or fail."""
        return self.standing == "claim"


@dataclass(frozen=True, kw_only=True)
class Experiment(Figure):
    """A figure with what the paper says about it.

    Parameters
    ----------
    claims
        The claims to judge.
    """

    claims: tuple[Claim, ...]
