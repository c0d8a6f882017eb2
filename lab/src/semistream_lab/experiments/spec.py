"""What is measured for a figure: workloads, points, axes.

Data, no behaviour. A `Figure` holds `Sample` s: the `Point` to measure, and the place of its number in the plot. A
`Point` contains everything that a measurement depends on. Results are looked up by its `digest`, so a point that
several experiments share is measured once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = [
    "PAGE_BYTES",
    "Axis",
    "DeviceKind",
    "Figure",
    "Point",
    "Printed",
    "Sample",
    "Scale",
    "Taken",
    "Verdict",
    "Workload",
]

PAGE_BYTES = 8192
DeviceKind = Literal["simulated", "real"]
Scale = Literal["full", "test"]
"""``full``: the papers' sizes (simulated), or sizes that take minutes (real); ``test``: seconds per experiment."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The stream and the relation R of a measurement.

    Parameters
    ----------
    kind
        ``zipf``, ``locality``, ``one-to-many``, ``tpch-orders``, ``tpch-lineitem`` or ``weather``.
    rows, row_bytes, rows_per_key, fill
        R: number of tuples, bytes per tuple, tuples per key, fill factor of pages.
    exponent, shape
        Skew of the stream, and whether frequent keys are stored first in R (``noperm``) or anywhere (``random``).
    stream_bytes
        Bytes of a stream tuple.
    interval_rows
        Stream tuples before a stream with locality moves to the next part of R.
    scale_factor
        Scale factor of TPC-H.
    """

    kind: str = "zipf"
    rows: int
    row_bytes: int = 120
    rows_per_key: int = 1
    fill: float = 1.0
    exponent: float = 1.0
    shape: Literal["noperm", "random"] = "noperm"
    stream_bytes: int = 20
    interval_rows: int = 0
    scale_factor: float = 0.0
    seed: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of R's tuples; budgets are given as a share of this."""
        return self.rows * self.row_bytes

    def tuples_of(self, pages: float) -> float:
        """Return how many of R's tuples fit into a number of full pages."""
        return pages * PAGE_BYTES / self.row_bytes


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measurement.

    Parameters
    ----------
    task
        How to measure: ``rate`` (a stream that never runs dry), ``timed`` (tuples that arrive at a rate), or one of
        the special tasks in `semistream_lab.experiments.measure.tasks`.
    algorithm, memory, options
        The join, its budget in bytes, its options.
    tuned
        Whether the cost model chooses all options that are not given.
    settings
        Further input of the task. ``bytes``: the bytes per waiting and per cached tuple that a paper states; the join
        then gets the budget in which it holds as many tuples as it would with these bytes.
    windows
        Measurement windows in the steady state: a mean and a confidence interval come from them.
    passes, warm_passes
        Page reads of a window and of the warm-up, as multiples of R's number of pages. Joins that serve their oldest
        tuple first begin with a full queue instead, and a window is one lap of it: skewed streams move through R in
        waves, and nothing shorter is representative.
    probes
        A window ends early after this many look-ups.
    seek_seconds
        Seek time of the simulated disk. Tests shorten it as they shorten R and memory, which keeps all proportions.
    """

    task: str = "rate"
    workload: Workload
    algorithm: str
    memory: int
    options: dict[str, Any] = field(default_factory=dict)
    tuned: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    windows: int = 5
    passes: float = 1.0
    warm_passes: float = 2.0
    probes: int = 4_000_000
    seek_seconds: float = 0.0085

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return dataclasses.asdict(self)

    def digest(self) -> str:
        """Return a short hash of everything in the point."""
        return digest(self.as_dict())


def digest(value: Any) -> str:
    """Return a short hash of a JSON value, which does not depend on the order of the names."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Sample:
    """A point and its place in the plot: its line, and its position on the x axis.

    A sample that is ``aside`` is measured for a claim and not drawn. ``metric`` selects another number of the
    measurement than the experiment's own metric.
    """

    series: str
    x: float
    point: Point
    facet: str = ""
    aside: bool = False
    metric: str = ""


@dataclass(frozen=True)
class Axis:
    """An axis of a plot."""

    title: str
    log: bool = False
    zero: bool = True
    format: str = "~s"


@dataclass(frozen=True)
class Verdict:
    """A claim, judged."""

    holds: bool
    measured: str
    """What was measured, in a few words."""
    reason: str = ""
    """Why it does not hold, from a model or a profile."""
    tuned: Verdict | None = None
    """The verdict on the same claim with each join tuned by our cost model, if that was measured."""
    equal: Verdict | None = None
    """The verdict on the same claim with equal bytes for all joins, in compiled code, if that was measured."""
    cause: str = ""
    """The cause of a failure: ``paper``, ``price`` or ``ours``. Empty if the claim holds."""


@dataclass(frozen=True)
class Taken:
    """A value that a paper does not state: what we assume, and why."""

    what: str
    value: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.value}, {self.why}"


@dataclass(frozen=True)
class Printed:
    """A value that a paper prints, and its place in the plot."""

    x: float
    y: float
    facet: str = ""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure or table of a paper: what is measured for it, and how it is drawn.

    Parameters
    ----------
    id, paper, figure, title
        Names of the figure.
    setup
        One or two sentences: what is held fixed.
    x, y
        The axes of the plot.
    metric
        The number of a measurement that is plotted.
    samples
        What to measure.
    notes
        Where this departs from the paper.
    taken
        Values that the paper does not state.
    chart
        ``lines``, ``bars`` or ``heat``.
    modelled
        Whether to draw the cost model together with the measurements.
    facet_title
        What the facets of a plot with several panels are.
    priced
        Whether lines as published have the prices of the paper's machine. False if sizes were tuned for compiled code.
    published
        Values that the paper prints, drawn into the plot.
    """

    id: str
    paper: str
    figure: str
    title: str
    setup: str
    x: Axis
    y: Axis
    samples: tuple[Sample, ...]
    metric: str = "rate"
    notes: str = ""
    taken: tuple[Taken, ...] = ()
    chart: Literal["lines", "bars", "heat"] = "lines"
    modelled: bool = True
    facet_title: str = ""
    priced: bool = True
    published: tuple[Printed, ...] = ()
