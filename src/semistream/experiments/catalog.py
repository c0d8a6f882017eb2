"""All experiments, by id."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from semistream.core.errors import SemistreamError
from semistream.experiments.experiment import Experiment
from semistream.experiments.papers import cachejoins, cmesh, hybrid, ssij_deadlines, ssij_parts, ssij_rates, xhybrid
from semistream.experiments.scales import Size
from semistream.experiments.spec import DeviceKind, Scale

__all__ = ["UnknownExperimentError", "catalog", "choose"]

_PAPERS = (cmesh, cachejoins, ssij_rates, ssij_parts, ssij_deadlines, hybrid, xhybrid)


class UnknownExperimentError(SemistreamError, ValueError):
    """No experiment of that id."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        known = list(known)
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        super().__init__(f"unknown experiment {name!r}; known: {', '.join(known)}, or 'all'.{hint}")


def catalog(device: DeviceKind = "simulated", scale: Scale = "full") -> dict[str, Experiment]:
    """Return all experiments, described for a device and scale."""
    size = Size(device, scale)
    return {experiment.id: experiment for paper in _PAPERS for experiment in paper.experiments(size)}


def choose(ids: Iterable[str], device: DeviceKind = "simulated", scale: Scale = "full") -> list[Experiment]:
    """Return experiments by id; ``all`` stands for all of them.

    >>> choose(["cmesh-99"])
    Traceback (most recent call last):
    ...
    semistream.experiments.catalog.UnknownExperimentError: unknown experiment 'cmesh-99'; known: ...
    """
    known = catalog(device, scale)
    chosen: dict[str, Experiment] = {}
    for name in ids:
        if name == "all":
            chosen |= known
        elif name in known:
            chosen[name] = known[name]
        else:
            raise UnknownExperimentError(name, known)
    return list(chosen.values())
