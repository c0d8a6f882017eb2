"""Comparisons that none of the five papers makes: CACHEJOIN with HYBRIDJOIN, and adaptivejoin with all of them."""

from __future__ import annotations

import dataclasses

from semistream_lab.experiments.experiment import Claim, Experiment
from semistream_lab.experiments.judge.claims import SIGNIFICANTLY, above
from semistream_lab.experiments.papers import cachejoins, xhybrid
from semistream_lab.experiments.papers.cmesh import RATE, SKEW, cmesh
from semistream_lab.experiments.papers.hybrid import MEMORY, budget, hybrid, scan, small, zipf
from semistream_lab.experiments.papers.settings import AS_PUBLISHED, TUNED, both_settings
from semistream_lab.experiments.papers.ssij.ssij_setups import TUNED_MESH, TUNED_SSIJ, index_join, mesh, relation
from semistream_lab.experiments.scales import Size
from semistream_lab.experiments.spec import Point, Sample, Workload

__all__ = ["ADAPTIVE", "FACETS", "PAPER", "experiments"]

PAPER = "Beyond the papers"
ADAPTIVE = f"adaptivejoin{TUNED}"
FACETS = {
    "hybrid": "R of HYBRIDJOIN's paper, 50 MB", "cmesh": "R of CMESHJOIN's paper, 1 % memory",
    "ssij": "R of SSIJ's paper, 5 % memory",
}  # fmt: skip
"""Panels of the comparison with adaptivejoin, by paper."""


def experiments(size: Size) -> list[Experiment]:
    """Describe the experiments. They are simulated only: on today's disk, see the benchmarks of joins."""
    return [_caches(size), _adaptive(size)] if size.simulated else []


def _caches(size: Size) -> Experiment:
    memories = size.pick([50.0, 100.0, 200.0], [50.0, 200.0], [50.0, 200.0])
    workload = zipf(size)

    def samples(megabytes: float) -> list[Sample]:
        memory = budget(size, megabytes)
        found = [
            Sample(f"CACHEJOIN{AS_PUBLISHED}", megabytes, cachejoins.paper(size, workload, memory, "cachejoin")),
            Sample(f"HYBRIDJOIN{AS_PUBLISHED}", megabytes, small(size, workload, memory)),
        ]
        if megabytes == memories[0]:
            found += [
                Sample(f"CACHEJOIN{TUNED}", megabytes, cachejoins.tuned_join(size, workload, memory, "cachejoin")),
                Sample(f"HYBRIDJOIN{TUNED}", megabytes, hybrid(size, workload, memory)),
            ]
        return found

    return Experiment(
        id="beyond-1", paper=PAPER, figure="CACHEJOIN and HYBRIDJOIN", title="CACHEJOIN against HYBRIDJOIN, by memory",
        setup=f"R {workload.rows / 1e6:g} M tuples, skew 1. As published: both joins read 850 records at a time.",
        x=MEMORY, y=dataclasses.replace(RATE, log=True, zero=False),
        samples=tuple(sample for megabytes in memories for sample in samples(megabytes)),
        claims=(
            Claim("CACHEJOIN is above HYBRIDJOIN.", "not in the five papers",
                  **both_settings(above, "CACHEJOIN", "HYBRIDJOIN", factor=SIGNIFICANTLY), standing="beside"),
        ),
    )  # fmt: skip


def adaptive(size: Size, workload: Workload, memory: float, seek_seconds: float) -> Point:
    """Return a point of adaptivejoin, which finds its own split of the memory."""
    return Point(
        workload=workload, algorithm="adaptivejoin", memory=int(memory), windows=size.pick(3, 2, 5), passes=0.2,
        warm_passes=1.0, probes=size.pick(1_000_000, 100_000, 1 << 40), seek_seconds=seek_seconds,
    )  # fmt: skip


def _adaptive(size: Size) -> Experiment:
    memory = budget(size, 50)
    samples: list[Sample] = []
    for skew in size.pick([0.0, 0.5, 1.0], [1.0], [0.0, 1.0]):
        workload = zipf(size, exponent=skew)
        lines = {
            ADAPTIVE: adaptive(size, workload, memory, size.seek_seconds(0.1)),
            f"X-HYBRIDJOIN{TUNED}": xhybrid.best(size, workload, memory),
            f"HYBRIDJOIN{TUNED}": hybrid(size, workload, memory),
            f"MESHJOIN{TUNED}": scan(size, workload, memory),
        }
        samples += [Sample(name, skew, point, facet=FACETS["hybrid"]) for name, point in lines.items()]
    large = Workload(rows=size.pick(100_000_000, 1_000_000, 2_000_000), shape="random")
    little = size.pick(0.01, 0.02, 0.01) * large.nbytes
    cached = relation(size)
    part = size.pick(0.05, 0.02, 0.05) * cached.nbytes
    joined = index_join(size, cached, part)
    samples += [
        Sample(ADAPTIVE, 1.0, adaptive(size, large, little, size.seek_seconds(0.01)), facet=FACETS["cmesh"]),
        Sample(f"CMESHJOIN{TUNED}", 1.0, cmesh(size, large, little), facet=FACETS["cmesh"]),
        *(
            Sample(name, 1.0, point, facet=FACETS["ssij"], metric="counting")
            for name, point in (
                (ADAPTIVE, adaptive(size, cached, part, joined.seek_seconds)),
                (TUNED_SSIJ, joined),
                (TUNED_MESH, mesh(size, relation(size, 0.0), part)),
            )
        ),
    ]
    return Experiment(
        id="beyond-2", paper=PAPER, figure="adaptivejoin", title="adaptivejoin against the papers' joins, by skew",
        setup=f"R {zipf(size).rows / 1e6:g}, {large.rows / 1e6:g} and {cached.rows / 1e6:g} M tuples; compiled code, "
        "each join tuned.",
        x=SKEW, y=dataclasses.replace(RATE, log=True, zero=False), samples=tuple(samples),
        metric="rate",
        claims=(
            Claim("adaptivejoin is above HYBRIDJOIN and MESHJOIN at every skew.", "not in the five papers",
                  above(ADAPTIVE, f"HYBRIDJOIN{TUNED}", f"MESHJOIN{TUNED}", of_all=True, facets=(FACETS["hybrid"],)),
                  standing="beside"),
        ),
        notes="On SSIJ's R results are counted, not materialized, and MESHJOIN has skew 0, as in that paper.",
        modelled=False,
    )  # fmt: skip
