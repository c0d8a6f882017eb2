"""All experiments, by id."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from semistream.core.errors import SemistreamError
from semistream_lab.experiments.experiment import Experiment
from semistream_lab.experiments.papers import beyond, cachejoins, cmesh, hybrid, hybrid_rates, xhybrid, xhybrid_grid
from semistream_lab.experiments.papers.ssij import ssij_data, ssij_deadlines, ssij_parts, ssij_rates, ssij_thresholds
from semistream_lab.experiments.scales import Size
from semistream_lab.experiments.spec import DeviceKind, Scale

__all__ = ["UnknownExperimentError", "catalog", "choose"]

_PAPERS = (
    cmesh, cachejoins, ssij_rates, ssij_data, ssij_parts, ssij_thresholds, ssij_deadlines, hybrid, hybrid_rates,
    xhybrid, xhybrid_grid, beyond,
)  # fmt: skip


class UnknownExperimentError(SemistreamError, ValueError):
    """There is no experiment with this id."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        known = list(known)
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        super().__init__(f"unknown experiment {name!r}; known: {', '.join(known)}, or 'all'.{hint}")


def catalog(device: DeviceKind = "simulated", scale: Scale = "full") -> dict[str, Experiment]:
    """Return all experiments, described for a device and scale."""
    size = Size(device, scale)
    made = [experiment for paper in _PAPERS for experiment in paper.experiments(size)]
    papers = list(dict.fromkeys(_paper(experiment) for experiment in made))
    made.sort(key=lambda one: (papers.index(_paper(one)), _figure(one)))
    return {experiment.id: experiment for experiment in made}


def _paper(experiment: Experiment) -> str:
    return experiment.id.partition("-")[0]


def _figure(experiment: Experiment) -> tuple[int, str]:
    """Return the sort key of an experiment within its paper; tables are last."""
    found = re.fullmatch(r"(\d+)(\D*)", experiment.id.partition("-")[2])
    return (int(found[1]), found[2]) if found else (1000, experiment.id)


def choose(ids: Iterable[str], device: DeviceKind = "simulated", scale: Scale = "full") -> list[Experiment]:
    """Return experiments by id; ``all`` stands for all of them.

    >>> choose(["cmesh-99"])
    Traceback (most recent call last):
    ...
    semistream_lab.experiments.catalog.UnknownExperimentError: unknown experiment 'cmesh-99'; known: ...
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
