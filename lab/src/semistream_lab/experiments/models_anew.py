"""Recompute the cost models for points that are already measured: a corrected model needs no new measurement."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from semistream_lab.experiments.experiment import Experiment
from semistream_lab.experiments.measure.both_sides import open_sides
from semistream_lab.experiments.measure.machine_costs import constants_of
from semistream_lab.experiments.measure.store import Store
from semistream_lab.experiments.measure.windows import predicted_rate, setting_of
from semistream_lab.experiments.spec import Point

__all__ = ["models_anew"]

Record = dict[str, Any]


def models_anew(
    experiments: Iterable[Experiment], store: Store, progress: Callable[[int, int], None] = lambda done, of: None
) -> int:
    """Append the rates that this version's models give for all points of a simulated run; return their number."""
    known = store.results()
    wanted = {
        sample.point.digest(): sample.point
        for experiment in experiments
        if experiment.modelled or experiment.metric == "counting"
        for sample in experiment.samples
    }
    here = {name: point for name, point in wanted.items() if known.get(name, {}).get("model")}
    found = {}
    for number, (name, point) in enumerate(here.items(), 1):
        found[name] = _models(point, known[name], store.data)
        progress(number, len(here))
    if found:
        store.append_models(found)
    return len(found)


def _models(point: Point, record: Record, directory: Path) -> Record:
    sides = open_sides(point.workload, "simulated", directory, point.seek_seconds)
    with sides.relation:
        constants = constants_of("simulated", directory)
        constants = constants.on(sides.relation.device.measure(), sides.relation.page_bytes)
        free = dataclasses.replace(constants, emit=0.0)
        names = {"model": constants} | ({"counting_model": free} if "counting_model" in record else {})
        return {
            name: predicted_rate(point.algorithm, setting_of(sides, prices), record["budget"], record["options"])
            for name, prices in names.items()
        }
