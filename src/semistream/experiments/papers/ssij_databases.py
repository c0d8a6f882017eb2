"""SSIJ §VI-C: index joins of databases, Figure 9."""

from __future__ import annotations

import dataclasses

from semistream.experiments.experiment import Claim, Experiment
from semistream.experiments.judge.outcome import Outcome
from semistream.experiments.papers.cmesh import RATE
from semistream.experiments.papers.ssij_setups import FILL, PAPER
from semistream.experiments.scales import Size
from semistream.experiments.spec import Axis, Point, Sample, Taken, Verdict, Workload

__all__ = ["experiments"]


POOL = 100_000_000
"""The databases' memory at the tenth of the paper's sizes: its buffer pool is 1 GB for an R of 0.5 to 1.5 GB."""


def experiments(size: Size) -> list[Experiment]:
    """Describe the experiment."""
    rows = size.pick([0.4, 1.2], [0.05], [0.4, 1.2])
    stream = size.pick(100_000, 20_000, 100_000)
    pool = int(POOL * size.pick(1.0, 0.1, 1.0))

    def point(million: float, system: str) -> Point:
        # 250 k keys in the paper's 4 to 12 M tuples: 16 of a key at its smallest
        workload = Workload(rows=int(million * 1e6), row_bytes=128, rows_per_key=16, exponent=0.0, fill=FILL)
        settings = {"tuples": stream, "system": system, "pool": pool}
        return Point(task="database", workload=workload, algorithm="ssij", memory=int(0.1 * workload.nbytes),
                     settings=settings, windows=3)  # fmt: skip

    systems = {"SSIJ": "semistream", "SQLite": "sqlite", "PostgreSQL": "postgresql", "MariaDB": "mariadb"}
    return [
        Experiment(
            id="ssij-9", paper=PAPER, figure="Figure 9",
            title="Index joins of databases, on this machine's disk and clock",
            setup=f"Uniform keys, 16 tuples of R for each; SSIJ with 10 % of R in memory, databases with a pool of "
            f"{pool / 1e6:g} MB, the paper's 1 GB in proportion.",
            x=Axis("size of R [million tuples]", format="~g"), y=dataclasses.replace(RATE, log=True, zero=False),
            samples=tuple(
                Sample(name, million, point(million, system)) for million in rows for name, system in systems.items()
            ),
            claims=(
                Claim("SSIJ is at least 3 times as fast as a database's index join.", "3–24×", _against_databases),
            ),
            modelled=False,
            notes="Real time on whatever device: databases are not simulated. Sizes are a tenth of the paper's.",
            taken=(
                Taken("the databases' page cache", "half of the pool where the system lets the memory of some "
                      "processes be bounded, else as the system has it; MariaDB reads past it",
                      "since the paper says nothing of it, and its R of up to 1.5 GB does not fit into the pool"),
            ),
        )
    ]  # fmt: skip


def _against_databases(outcome: Outcome) -> Verdict:
    texts, least = [], float("inf")
    for system in outcome.names()[1:]:
        gains = [a.y / b.y for _, a, b in outcome.pairs("SSIJ", system)]
        if gains:
            least = min(least, min(gains))
            texts.append(f"{system} {min(gains):.1f}× to {max(gains):.1f}×")
    bounded = {
        str(found.record["bounded"]) for name in outcome.names()[1:] for found in outcome.line(name)
        if "bounded" in found.record
    }  # fmt: skip
    if bounded:
        texts.append(f"memory of the databases: {', '.join(sorted(bounded))}")
    holds = 2.7 <= least < float("inf")
    reason = (
        "A look-up that finds its page in memory is fast on this machine, and its disk starts a read in microseconds; "
        "the paper's took 8.5 ms. SSIJ holds a tenth of R and reads the rest past the page cache."
    )
    return Verdict(holds, "; ".join(texts), "" if holds else reason)
