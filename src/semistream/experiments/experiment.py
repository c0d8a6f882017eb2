"""An experiment: a figure of a paper, and the claims that are judged by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from semistream.experiments.judge.outcome import Outcome
from semistream.experiments.spec import Figure, Verdict

__all__ = ["Claim", "Experiment"]


@dataclass(frozen=True)
class Claim:
    """What a paper says, as something that code can check."""

    text: str
    published: str
    """The figure in the paper, or what it says in words."""
    judge: Callable[[Outcome], Verdict]


@dataclass(frozen=True, kw_only=True)
class Experiment(Figure):
    """A figure with what the paper says of it.

    Parameters
    ----------
    claims
        What to judge.
    """

    claims: tuple[Claim, ...]
