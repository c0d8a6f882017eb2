"""Comparisons that none of the five papers makes: CACHEJOIN with HYBRIDJOIN, and adaptivejoin with all of them."""

from __future__ import annotations

import dataclasses

from semistream_lab.experiments.experiment import Claim, Experiment
from semistream_lab.experiments.judge.claims import SIGNIFICANTLY, above
from semistream_lab.experiments.papers import cachejoins, xhybrid
from semistream_lab.experiments.papers.cmesh import MEMORY as PERCENT
from semistream_lab.experiments.papers.cmesh import RATE, SKEW, cmesh
from semistream_lab.experiments.papers.data_sets import line_items, many_reports, orders, reports
from semistream_lab.experiments.papers.hybrid import MEMORY, budget, hybrid, scan, small, zipf
from semistream_lab.experiments.papers.settings import AS_PUBLISHED, TUNED, both_settings
from semistream_lab.experiments.papers.ssij.ssij_setups import (
    FILL,
    TUNED_SSIJ,
    index_join,
    locality,
    relation,
)
from semistream_lab.experiments.scales import Size
from semistream_lab.experiments.spec import Point, Sample, Workload

__all__ = ["ADAPTIVE", "DATA", "PAPER", "experiments"]

PAPER = "Beyond the papers"
ADAPTIVE, C_TUNED = f"adaptivejoin{TUNED}", f"CMESHJOIN{TUNED}"


def experiments(size: Size) -> list[Experiment]:
    """Describe the experiments.

    They are simulated only: on today's disk, see the benchmarks of joins.
    """
    return [_caches(size), _adaptive(size), _adaptive_elsewhere(size)] if size.simulated else []


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
        if skew == 1.0:
            lines |= {
                f"{name}{TUNED}": cachejoins.tuned_join(size, workload, memory, algorithm)
                for name, algorithm in cachejoins.NAMES.items()
            }
        samples += [Sample(name, skew, point) for name, point in lines.items()]
    return Experiment(
        id="beyond-2", paper=PAPER, figure="adaptivejoin", title="adaptivejoin against the papers' joins, by skew",
        setup=f"R {zipf(size).rows / 1e6:g} M tuples, memory {memory / 1e6:g} MB; compiled code, each join tuned.",
        x=SKEW, y=dataclasses.replace(RATE, log=True, zero=False), samples=tuple(samples),
        metric="rate",
        claims=(
            Claim("adaptivejoin is above HYBRIDJOIN and MESHJOIN at every skew.", "not in the five papers",
                  above(ADAPTIVE, f"HYBRIDJOIN{TUNED}", f"MESHJOIN{TUNED}", of_all=True),
                  standing="beside"),
        ),
        modelled=False,
    )  # fmt: skip


DATA = {
    "random": "CMESHJOIN's R, skew 1", "orders": "TPC-H: Orders with Customer",
    "many reports": "weather, CMESHJOIN's paper", "zipf": "SSIJ's R, skew 1",
    "1:400": "SSIJ's R, 400 tuples per key", "items": "TPC-H: LineItem with Part", "reports": "weather, SSIJ's paper",
    "locality": "SSIJ's stream with locality",
}  # fmt: skip
"""Panels of the comparison with adaptivejoin on other data."""


def _adaptive_elsewhere(size: Size) -> Experiment:
    keys = size.pick(400, 10, 16)
    cached = {
        "zipf": relation(size), "1:400": relation(size, rows_per_key=keys), "items": line_items(size, FILL),
        "reports": reports(size, FILL), "locality": locality(size),
    }  # fmt: skip
    scanned = {
        "random": Workload(rows=size.pick(100_000_000, 1_000_000, 2_000_000), shape="random"),
        "orders": orders(size), "many reports": many_reports(size),
    }  # fmt: skip
    memories = {
        "random": [0.01], "orders": [0.01, 0.1], "many reports": [0.01, 0.1],
        "zipf": [0.01, 0.05, 0.1], "1:400": [0.1], "items": [0.01, 0.05],
        "reports": [0.01, 0.05], "locality": [0.1],
    }  # fmt: skip
    samples: list[Sample] = []
    for name, parts in memories.items():
        for part in parts if size.published else [0.1]:
            if name in cached:
                workload, other, metric = cached[name], TUNED_SSIJ, "" if name == "locality" else "counting"
                of = workload.rows / (20e6 if name in ("items", "reports") else 80e6)
                joined = index_join(size, workload, part * workload.nbytes, of)
            else:
                workload, other, metric = scanned[name], C_TUNED, ""
                joined = cmesh(size, workload, part * workload.nbytes)
            ours = adaptive(size, workload, part * workload.nbytes, joined.seek_seconds)
            samples += [
                Sample(line, 100 * part, point, facet=DATA[name], metric=metric)
                for line, point in ((ADAPTIVE, ours), (other, joined))
            ]
    return Experiment(
        id="beyond-3", paper=PAPER, figure="adaptivejoin", title="adaptivejoin on the other data of the papers",
        setup="Compiled code, each join tuned.", x=PERCENT, y=dataclasses.replace(RATE, log=True, zero=False),
        samples=tuple(samples),
        claims=(
            Claim("adaptivejoin is above the papers' joins on their data.", "not in the five papers",
                  above(ADAPTIVE, C_TUNED, TUNED_SSIJ, of_all=True), standing="beside"),
        ),
        notes="On SSIJ's data results are counted, not materialized, except for the stream with locality.",
        modelled=False,
    )  # fmt: skip
