"""P-CACHEJOIN and OP-CACHEJOIN: Figures 3, 4 and 6."""

from __future__ import annotations

import dataclasses

from semistream.experiments.claims import above, interior, near
from semistream.experiments.outcome import Outcome
from semistream.experiments.papers.cmesh import RATE, SKEW
from semistream.experiments.papers.hybrid import MEMORY, budget, hybrid, zipf
from semistream.experiments.sizes import Size
from semistream.experiments.spec import Axis, Claim, Experiment, Point, Sample, Workload

__all__ = ["experiments"]

PAPER = "P- and OP-CACHEJOIN"
ROWS = Axis("size of R [million tuples]", format="~g")
NAMES = {"CACHEJOIN": "cachejoin", "P-CACHEJOIN": "p_cachejoin", "OP-CACHEJOIN": "op_cachejoin"}


def cached(size: Size, workload: Workload, memory: int, algorithm: str) -> Point:
    """Return a point of CACHEJOIN or a relative, its cache and disk buffer chosen by the cost model."""
    return hybrid(size, workload, memory, algorithm)


def experiments(size: Size) -> list[Experiment]:
    """Describe the experiments of both papers."""
    rows = size.pick([0.5, 0.75, 1.0, 1.5, 2.0], [0.5, 2.0], [0.5, 2.0])
    memories = size.some([50.0, 100.0, 150.0, 200.0, 250.0])
    skews = [0.5, 0.75, 1.0]
    sweeps = (
        ("a", "Size of R", ROWS, [(million, zipf(size, million), budget(size, 50)) for million in rows],
         f"Memory {budget(size, 50) / 1e6:g} MB, skew 1."),
        ("b", "Memory", MEMORY, [(megabytes, zipf(size), budget(size, megabytes)) for megabytes in memories],
         f"R {zipf(size).rows / 1e6:g} M tuples, skew 1."),
        ("c", "Skew", SKEW, [(skew, zipf(size, exponent=skew), budget(size, 50)) for skew in skews],
         f"R {zipf(size).rows / 1e6:g} M tuples, memory {budget(size, 50) / 1e6:g} MB."),
    )  # fmt: skip
    made = [_buffer(size)]
    for figure, names, title in (
        ("4", ["CACHEJOIN", "P-CACHEJOIN"], "P-CACHEJOIN"),
        ("6", list(NAMES), "OP-CACHEJOIN"),
    ):
        for letter, what, axis, places, setup in sweeps:
            order = list(reversed(names))
            made.append(
                Experiment(
                    id=f"{'pcache' if figure == '4' else 'opcache'}-{figure}{letter}",
                    paper=PAPER,
                    figure=f"Figure {figure}({letter})",
                    title=f"{title}: {what[0].lower()}{what[1:]}",
                    setup=setup,
                    x=axis,
                    y=RATE,
                    samples=tuple(
                        Sample(name, x, cached(size, workload, memory, NAMES[name]))
                        for x, workload, memory in places
                        for name in names
                    ),
                    claims=(Claim(f"{' above '.join(order)} throughout.", "above", above(*order, because=_overlap)),),
                )
            )
    return made


def _overlap(outcome: Outcome) -> str:
    """Say how much of the time there is to overlap, from what was counted."""
    shares = [found.record["io_share"] for found in outcome.line("CACHEJOIN")]
    return (
        f"On this disk {min(shares):.0%} to {max(shares):.0%} of CACHEJOIN's time is reading: that bounds what overlap "
        "can gain, and the memory of the intermediate buffer or the second disk buffer is paid for all the same."
    )


def _buffer(size: Size) -> Experiment:
    workload, memory = zipf(size), budget(size, 100)
    shares = size.pick(
        [0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32], [0.005, 0.02, 0.08, 0.32], [0.005, 0.02, 0.3]
    )

    def point(share: float) -> Point:
        made = cached(size, workload, memory, "p_cachejoin")
        return dataclasses.replace(made, options={**made.options, "buffer_share": share})

    return Experiment(
        id="pcache-3", paper=PAPER, figure="Figure 3", title="Tuning the intermediate buffer",
        setup=f"R {workload.rows / 1e6:g} M tuples, memory {memory / 1e6:g} MB, skew 1.",
        x=Axis("intermediate buffer [% of memory]", log=True, format="~g"), y=RATE,
        samples=tuple(Sample("P-CACHEJOIN", 100 * share, point(share)) for share in shares),
        claims=(
            Claim("Some size of the buffer between the ends is best.", "interior optimum",
                  interior("P-CACHEJOIN", because=_no_stall)),
            Claim("The best size is near 2 % of memory.", "2 MB of 100 MB",
                  near("P-CACHEJOIN", 2.0, factor=2.0, because=_no_stall)),
        ),
    )  # fmt: skip


def _no_stall(_: Outcome) -> str:
    return (
        "Simulated time overlaps the two phases as if the buffer between them never ran empty or full, so a small "
        "buffer costs nothing here and a large one costs the memory it takes."
    )
