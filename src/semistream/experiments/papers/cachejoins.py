"""P-CACHEJOIN and OP-CACHEJOIN: Figures 3, 4 and 6."""

from __future__ import annotations

import dataclasses

from semistream.experiments.experiment import Claim, Experiment
from semistream.experiments.judge.claims import above, interior, near
from semistream.experiments.judge.outcome import Outcome
from semistream.experiments.papers.cmesh import RATE, SKEW
from semistream.experiments.papers.hybrid import MEMORY, budget, hybrid, zipf
from semistream.experiments.scales import Size
from semistream.experiments.spec import Axis, Point, Sample, Workload

__all__ = ["experiments"]

PAPER = "P- and OP-CACHEJOIN"
ROWS = Axis("size of R [million tuples]", format="~g")
BUFFER = 0.02
"""Share of the memory for the intermediate buffer: what the paper finds best, 2 of 100 MB."""
AT_ONCE = "OP-CACHEJOIN, two loads at once"
NAMES = {"CACHEJOIN": "cachejoin", "P-CACHEJOIN": "p_cachejoin", "OP-CACHEJOIN": "op_cachejoin"}


def cached(size: Size, workload: Workload, memory: int, algorithm: str) -> Point:
    """Return a point of CACHEJOIN or a relative, its cache and disk buffer chosen by the cost model."""
    point = hybrid(size, workload, memory, algorithm)
    if algorithm == "cachejoin":
        return point
    return dataclasses.replace(point, options={**point.options, "buffer_share": BUFFER})


def experiments(size: Size) -> list[Experiment]:
    """Describe the experiments of both papers."""
    rows = size.pick([0.5, 1.0, 2.0], [0.5, 2.0], [0.5, 2.0])
    memories = size.some([50.0, 100.0, 200.0])  # 250 MB would be more than R
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
            samples = [
                Sample(name, x, cached(size, workload, memory, NAMES[name]))
                for x, workload, memory in places
                for name in names
            ]
            claims = [Claim(f"{' above '.join(order)} throughout.", "above", above(*order, because=_overlap))]
            if figure == "6" and size.simulated:
                samples += [
                    Sample(AT_ONCE, x, cached(size, workload, memory, "op_cachejoin"), metric="at_once")
                    for x, workload, memory in places
                ]
                claims.append(
                    Claim(
                        "So it is if both disk buffers are loaded at once, each in the time that one takes alone.",
                        "c_IO/2 in the cost model",
                        above(AT_ONCE, "P-CACHEJOIN", "CACHEJOIN", because=_overlap),
                    )
                )
            made.append(
                Experiment(
                    id=f"{'pcache' if figure == '4' else 'opcache'}-{figure}{letter}",
                    paper=PAPER,
                    figure=f"Figure {figure}({letter})",
                    title=f"{title}: {what[0].lower()}{what[1:]}",
                    setup=setup,
                    x=axis,
                    y=RATE,
                    samples=tuple(samples),
                    claims=tuple(claims),
                )
            )
    return made


def _overlap(outcome: Outcome) -> str:
    """Say how much of the time there is to overlap, from what was counted."""
    shares = [found.record["io_share"] for found in outcome.line("CACHEJOIN")]
    text = (
        f"Of CACHEJOIN's time {min(shares):.0%} to {max(shares):.0%} is reading, and overlapping hides the smaller "
        "part at most; the memory of the intermediate buffer is paid for all the same. "
    )
    if "OP-CACHEJOIN" in outcome.names():
        served = [
            [
                found.record["counts"]["appended"] / max(1, found.record["counts"]["reads"])
                for found in outcome.line(name)
            ]
            for name in ("P-CACHEJOIN", "OP-CACHEJOIN")
        ]
        least = min(second / first for first, second in zip(*served, strict=True))
        text += (
            "OP-CACHEJOIN's second buffer is loaded by the newest key, for whose pages few have gathered yet: a read "
            f"serves as little as {least:.2f} times the tuples of one of P-CACHEJOIN. The paper's cost model halves "
            "the time of reading instead. Its R of 240 MB is in a MySQL server on a machine with several cores, where "
            "two queries do run at once. "
        )
    return text.strip()


def _buffer(size: Size) -> Experiment:
    workload, memory = zipf(size), budget(size, 100)
    shares = size.pick([0.0025, 0.005, 0.01, 0.02, 0.08, 0.32], [0.005, 0.02, 0.08, 0.32], [0.005, 0.02, 0.3])

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
                  interior("P-CACHEJOIN")),
            Claim("The best size is near 2 % of memory.", "2 MB of 100 MB",
                  near("P-CACHEJOIN", 2.0, factor=2.0)),
        ),
    )  # fmt: skip
