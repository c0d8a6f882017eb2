"""An experiment: a figure of a paper, and the claims that are judged by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from semistream_lab.experiments.judge.outcome import Outcome
from semistream_lab.experiments.spec import Figure, Verdict

__all__ = ["Claim", "Experiment", "Standing"]

Standing = Literal["claim", "assumption", "repeated", "beside"]
"""Whether a sentence counts.

``claim``: a paper's, judged and counted. ``assumption``: of a model, so that what follows from it shows nothing.
``repeated``: judged already, by the same measurement. ``beside``: not a paper's, but worth knowing.
"""


@dataclass(frozen=True)
class Claim:
    """What a paper says, as something that code can check: one sentence, one judge."""

    text: str
    published: str
    """The figure in the paper, or what it says in words."""
    judge: Callable[[Outcome], Verdict]
    """Of what was measured as published."""
    tuned: Callable[[Outcome], Verdict] | None = None
    """The same, where each join is tuned."""
    second: str = "tuned"
    """What that second setting is."""
    standing: Standing = "claim"
    impossible: str = ""
    """What follows if it fails: why the published figure cannot be right, in a few words. Empty if it could be."""

    @property
    def counted(self) -> bool:
        """Whether it is one of the claims that hold or fail."""
        return self.standing == "claim"


@dataclass(frozen=True, kw_only=True)
class Experiment(Figure):
    """A figure with what the paper says of it.

    Parameters
    ----------
    claims
        What to judge.
    """

    claims: tuple[Claim, ...]
