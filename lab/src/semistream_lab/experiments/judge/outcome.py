"""The results of an experiment: measured numbers by line and x position, for claims and plots."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from semistream_lab.experiments.confidence import interval
from semistream_lab.experiments.judge.machine_prices import MachinePrices, repriced
from semistream_lab.experiments.papers.settings import EQUAL, TUNED
from semistream_lab.experiments.spec import Figure, Sample

__all__ = ["Found", "Outcome"]

Record = dict[str, Any]


def _compiled(sample: Sample) -> bool:
    """Return whether a line always has the prices of compiled code."""
    return TUNED in sample.series or EQUAL in sample.series


@dataclass(frozen=True)
class Found:
    """One measured number."""

    x: float
    y: float
    interval: float
    model: float | None
    record: Record
    facet: str = ""
    seeds: int = 1
    """Streams that were measured, each with its own seed; the number is then their mean."""


Place = tuple[str, str, float]


def _by_place(measured: Iterable[tuple[Sample, Found]]) -> dict[Place, list[Found]]:
    """Return the numbers of each panel, line and x position: several if several seeds were measured there."""
    places: dict[Place, dict[int, Found]] = {}
    for sample, found in measured:
        places.setdefault((sample.facet, sample.series, sample.x), {})[sample.point.workload.seed] = found
    return {place: list(seeds.values()) for place, seeds in places.items()}


def _mean(found: list[Found]) -> Found:
    """Return the mean of several seeds, with the interval of this mean; the record is the first one's."""
    if len(found) == 1:
        return found[0]
    values = [one.y for one in found]
    mean = sum(values) / len(values)
    return dataclasses.replace(found[0], y=mean, interval=interval(values), seeds=len(found))


class Outcome:
    """The results of one experiment.

    Parameters
    ----------
    experiment
        What to measure.
    results
        Records by the digests of their points. Records of other experiments are ignored.
    prices
        The prices of the paper's machine, for the lines as published. None: as measured, with compiled code.
    """

    def __init__(self, experiment: Figure, results: Mapping[str, Record], prices: MachinePrices | None = None) -> None:
        self.experiment = experiment
        self.prices = prices
        self._results = results
        self.missing: list[Sample] = []
        self.skipped: list[tuple[Sample, str]] = []
        self.aside: dict[str, Record] = {}
        """Records that are measured only for a claim, by series."""
        self._lines: dict[tuple[str, str], list[Found]] = {}
        self._measured: list[tuple[Sample, Found]] = []
        for sample in experiment.samples:
            record = results.get(sample.point.digest())
            if record is None or "error" in record:
                self.missing.append(sample)
            elif "skipped" in record:
                self.skipped.append((sample, str(record["skipped"])))
            elif sample.aside:
                self.aside[sample.series] = record
            else:
                self._measured.append((sample, self._found(sample, record)))
        for place, group in _by_place(self._measured).items():
            self._lines.setdefault(place[:2], []).append(_mean(group))
        for line in self._lines.values():
            line.sort(key=lambda found: found.x)

    def _found(self, sample: Sample, record: Record) -> Found:
        metric = sample.metric or self.experiment.metric
        model = record.get("model") if metric == "rate" else record.get(f"{metric}_model")
        interval = record.get("interval") if metric == "rate" else record.get(f"{metric}_interval")
        y = float(record[metric])
        if self.prices is not None and metric == "rate" and "counts" in record and not _compiled(sample):
            priced = repriced(record, sample.point, self.prices)
            interval, y, model = (interval or 0.0) * priced / y, priced, None
        return Found(sample.x, y, float(interval or 0.0), model, record, sample.facet)

    @functools.cached_property
    def compiled(self) -> Outcome:
        """The same results with the prices of compiled code, for which there are models."""
        return self if self.prices is None else Outcome(self.experiment, self._results)

    @property
    def real(self) -> bool:
        """Whether a real device and a real clock were measured."""
        return any(found.record.get("environment", {}).get("device") == "real" for _, found in self._measured)

    @property
    def complete(self) -> bool:
        """Whether every point is measured or skipped on this device, and at least one is measured."""
        return not self.missing and bool(self._measured)

    @property
    def why_not(self) -> str:
        """Why there is nothing to show if the outcome is not `complete`."""
        if self.missing or not self.skipped:
            return "Not run."
        return f"Not measured on this device: {self.skipped[0][1]}."

    def measured(self) -> list[tuple[Sample, Found]]:
        """Return the measured samples and their numbers, in the order of the experiment."""
        return list(self._measured)

    def names(self) -> list[str]:
        """Return the lines, in the order of the experiment."""
        return list(dict.fromkeys(sample.series for sample in self.experiment.samples if not sample.aside))

    def facets(self) -> list[str]:
        """Return the panels, in the order of the experiment."""
        return list(dict.fromkeys(sample.facet for sample in self.experiment.samples if not sample.aside))

    def line(self, series: str, facet: str = "") -> list[Found]:
        """Return one line, from left to right."""
        return self._lines.get((facet, series), [])

    def at(self, series: str, x: float, facet: str = "") -> Found:
        """Return one number."""
        for found in self.line(series, facet):
            if found.x == x:
                return found
        raise KeyError(f"{self.experiment.id} has no {series!r} at {x} (facet {facet!r})")

    def pairs(self, first: str, second: str, facet: str = "") -> list[tuple[float, Found, Found]]:
        """Return the x positions where both lines were measured, with both numbers."""
        other = {found.x: found for found in self.line(second, facet)}
        return [(found.x, found, other[found.x]) for found in self.line(first, facet) if found.x in other]
