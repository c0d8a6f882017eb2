"""HYBRIDJOIN: Figures 3, 6 and 8 to 11."""

from __future__ import annotations

import dataclasses

from semistream.experiments.experiment import Claim, Experiment
from semistream.experiments.judge.claims import above, decays, interior, model_within
from semistream.experiments.judge.outcome import Outcome
from semistream.experiments.papers.cmesh import RATE
from semistream.experiments.scales import Size
from semistream.experiments.spec import Axis, Point, Sample, Verdict, Workload

__all__ = ["experiments", "hybrid", "scan"]

PAPER = "HYBRIDJOIN"
SHARE = 0.1
"""Of the papers' sizes, in tests."""
PARTITION = 13
"""Pages of 850 tuples, the disk buffer of the later papers."""
ROWS = Axis("size of R [million tuples]", log=True, format="~g")
MEMORY = Axis("memory [MB]", format="~g")
MB = 1_000_000


def zipf(size: Size, rows: float = 2.0, exponent: float = 1.0) -> Workload:
    """Return the papers' stream over R of so many million tuples, stored by frequency."""
    return Workload(rows=int(rows * 1e6 * size.pick(1.0, SHARE, 0.5)), exponent=exponent)


def budget(size: Size, megabytes: float) -> int:
    """Return a budget, smaller as R is."""
    return int(megabytes * MB * size.pick(1.0, SHARE, 0.5))


def scan(size: Size, workload: Workload, memory: int, algorithm: str = "meshjoin") -> Point:
    """Return a point of a join that scans R, or of INLJ."""
    options = {"in_flight": 1} if algorithm == "inlj" and size.simulated else {}
    if algorithm != "inlj":
        options = size.scanning(SHARE)
    return Point(
        workload=workload, algorithm=algorithm, memory=memory, options=options, windows=size.pick(2, 3, 5),
        passes=size.pick(1.0, 0.5, 0.5), probes=size.pick(1 << 40, 4_000_000, 4_000_000),
        seek_seconds=size.seek_seconds(SHARE),
    )  # fmt: skip


def hybrid(
    size: Size, workload: Workload, memory: int, algorithm: str = "hybridjoin", pages: int | None = None
) -> Point:
    """Return a point of HYBRIDJOIN or a relative: partitions of ``pages``, or as the cost model finds best."""
    # as many as a lap takes, but with much memory, where that would be too many
    lap = max(min(memory * 8 // 50, 16_000_000), 4 * workload.rows)
    point = Point(
        workload=workload, algorithm=algorithm, memory=memory, windows=size.pick(3, 3, 5),
        probes=size.pick(lap, 1 << 40, 1 << 40), seek_seconds=size.seek_seconds(SHARE),
    )  # fmt: skip
    options = {"in_flight": 1} if size.simulated else {}
    if pages is None:
        return dataclasses.replace(point, options=options, tuned=True)
    return dataclasses.replace(point, options={**options, "partition_pages": pages})


def experiments(size: Size) -> list[Experiment]:
    """Describe the experiments of the paper."""
    return [*_generator(size), *_tuning(size), *_delays(size), *_rates(size)]


def _eighty_twenty(outcome: Outcome) -> Verdict:
    found = outcome.line("measured")
    shares = {one.x: one.y for one in found}
    return Verdict(
        shares[20] >= 0.8 * 0.9,
        f"the most frequent 20 % take {shares[20]:.0%} of the stream",
        "" if shares[20] >= 0.72 else "Zipf's law with exponent 1 takes less at this number of products",
    )


def _bursty(outcome: Outcome) -> Verdict:
    self_similar, poisson = outcome.line("on/off sources"), outcome.line("independent arrivals")
    least = min(one.y / other.y for one, other in zip(self_similar, poisson, strict=True))
    return Verdict(
        least > 3.0,
        f"variance for each expected tuple {self_similar[0].y:.0f} in intervals of {self_similar[0].x:g} s, "
        f"{self_similar[-1].y:.0f} in {self_similar[-1].x:g} s (independent arrivals: 1 at all widths)",
        "" if least > 3.0 else "at some width the bursts average out",
    )


def _generator(size: Size) -> list[Experiment]:
    relation = zipf(size)
    segments = size.pick([0, 1, 2, 5, 10, 25, 50, 100, 200, 400, 750], [0, 2, 10, 40], [0, 2, 10, 100, 350])
    tuples = size.pick(1_000_000, 100_000, 500_000)
    products = Workload(rows=2000)
    widths = [0.01, 0.1, 1.0, 10.0]
    base = Point(task="bursts", workload=products, algorithm="none", memory=0)
    return [
        Experiment(
            id="hybrid-3", paper=PAPER, figure="Figure 3", title="Use of pages by their place in R",
            setup=f"R {relation.rows / 1e6:g} M tuples stored by frequency; segments of 20 pages.",
            x=Axis("segment of R, counted in 20 pages", format="~g"),
            y=Axis("uses in a million tuples" if size.scale == "full" else "uses", log=True, zero=False),
            samples=tuple(
                Sample("uses of a segment", segment + 1, Point(
                    task="page use", workload=relation, algorithm="none", memory=0,
                    settings={"tuples": tuples, "segment_pages": 20, "segment": segment},
                ))
                for segment in segments
            ),
            claims=(Claim("The rate of use falls towards the end of R.", "falls from about 2000 to near 0",
                          decays("uses of a segment")),),
            metric="uses", modelled=False,
        ),
        Experiment(
            id="hybrid-8", paper=PAPER, figure="Figure 8", title="The generator: what sells",
            setup="Zipf's law with exponent 1 over 2000 products.",
            x=Axis("most frequent products [%]", format="~g"), y=Axis("share of the stream", format="~%"),
            samples=tuple(
                Sample("measured", 100 * top, Point(
                    task="sales", workload=products, algorithm="none", memory=0,
                    settings={"tuples": size.pick(1_000_000, 100_000, 1_000_000), "top": top},
                ))
                for top in (0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
            ),
            claims=(Claim("80 % of the sales are from 20 % of the products.", "80/20", _eighty_twenty),),
            metric="share",
        ),
        Experiment(
            id="hybrid-9", paper=PAPER, figure="Figure 9", title="The generator: when tuples come",
            setup="10 on/off sources of doubling bandwidth, 1000 tuples a second on average.",
            x=Axis("width of an interval [s]", log=True, format="~g"),
            y=Axis("variance of its tuples / their mean", log=True, zero=False, format="~g"),
            samples=tuple(
                Sample(name, width, dataclasses.replace(base, settings={
                    "rate": 1000.0, "arrivals": kind, "width": width, "intervals": max(400, int(400 / width)),
                }))
                for name, kind in (("on/off sources", "bursty"), ("independent arrivals", "poisson"))
                for width in widths
            ),
            claims=(Claim("Arrivals are bursty at several time scales.", "self-similar", _bursty),),
            metric="dispersion", modelled=False,
        ),
    ]  # fmt: skip


def _tuning(size: Size) -> list[Experiment]:
    pages = size.pick([13, 52, 104, 208, 416, 832, 1664, 3328], [2, 13, 52, 208, 500], [1, 13, 208, 1664])
    workload, memory = zipf(size), budget(size, 50)
    return [
        Experiment(
            id="hybrid-6", paper=PAPER, figure="Figure 6", title="Tuning the disk buffer",
            setup=f"R {workload.rows / 1e6:g} M tuples, memory {memory / 1e6:g} MB, skew 1.",
            x=Axis("disk buffer [pages]", log=True, format="~g"), y=RATE,
            samples=tuple(Sample("HYBRIDJOIN", count, hybrid(size, workload, memory, pages=count))
                          for count in pages),
            claims=(Claim("Some size of the disk buffer between the ends is best.", "interior optimum",
                          interior("HYBRIDJOIN")),),
        ),
    ]  # fmt: skip


def _delays(size: Size) -> list[Experiment]:
    rows = size.pick([0.5, 2.0, 8.0], [0.5, 2.0], [0.5, 2.0])
    rates = size.pick([125.0, 250.0, 500.0, 1000.0, 2000.0], [250.0, 2000.0], [125.0, 2000.0])
    memory = budget(size, 50)

    def delayed(workload: Workload, algorithm: str, rate: float) -> Point:
        point = scan(size, workload, memory, algorithm)
        if algorithm == "hybridjoin":
            point = hybrid(size, workload, memory, pages=PARTITION)
        # MESHJOIN's tuples stay until so many others have come as fit into memory, from the first one on
        tuples = {"meshjoin": int(1.15 * memory / 57), "inlj": 2000}.get(algorithm, int(60 * rate) + 3000)
        settings = {"rate": rate, "arrivals": "bursty", "tuples": tuples, "results": True}
        if algorithm == "meshjoin":
            settings["window"] = [0.01, 0.1]
        return dataclasses.replace(point, task="delays", settings=settings, windows=4)

    slow = rates[0]
    return [
        Experiment(
            id="hybrid-10a", paper=PAPER, figure="Figure 10(a)", title="Processing time by size of R",
            setup=f"Memory {memory / 1e6:g} MB, skew 1, bursts of {slow:g} tuples/s on average.",
            x=ROWS, y=Axis("processing time [s]", log=True, zero=False, format="~g"),
            samples=tuple(
                Sample(name, million, delayed(zipf(size, million), algorithm, slow))
                for million in rows for name, algorithm in (("HYBRIDJOIN", "hybridjoin"), ("MESHJOIN", "meshjoin"))
            ),
            claims=(Claim("HYBRIDJOIN's processing time is far below MESHJOIN's at all sizes.",
                          "significantly smaller",
                          above("MESHJOIN", "HYBRIDJOIN", factor=2.0)),),
            metric="processing", modelled=False,
            notes="Processing time: what the join works between taking a tuple in and its result.",
        ),
        Experiment(
            id="hybrid-10b", paper=PAPER, figure="Figure 10(b)", title="Waiting time by arrival rate",
            setup=f"R {zipf(size).rows / 1e6:g} M tuples, memory {memory / 1e6:g} MB, skew 1, bursty arrivals.",
            x=Axis("arrivals [tuples/s]", log=True, format="~g"),
            y=Axis("waiting time [s]", log=True, zero=False, format="~g"),
            samples=tuple(
                Sample(name, rate, delayed(zipf(size), algorithm, rate))
                for rate in rates
                for name, algorithm in (("HYBRIDJOIN", "hybridjoin"), ("MESHJOIN", "meshjoin"), ("INLJ", "inlj"))
            ),
            claims=(Claim("HYBRIDJOIN's waiting time is below MESHJOIN's at all rates.", "below",
                          above("MESHJOIN", "HYBRIDJOIN")),),
            metric="waiting", modelled=False,
            notes="Waiting time: before the join takes a tuple in, and while it waits for others to arrive. INLJ "
            "cannot keep up beyond about 116 tuples/s: its backlog grows, and is shown for the first 2000 tuples.",
        ),
    ]  # fmt: skip


def _rates(size: Size) -> list[Experiment]:
    rows = size.pick([0.5, 1.0, 2.0, 4.0, 8.0], [0.5, 2.0], [0.5, 2.0, 8.0])
    memories = size.some([50.0, 100.0, 150.0, 200.0, 250.0])
    three = (("HYBRIDJOIN", "hybridjoin"), ("MESHJOIN", "meshjoin"), ("INLJ", "inlj"))
    log_rate = dataclasses.replace(RATE, log=True, zero=False)

    def point(workload: Workload, memory: int, algorithm: str) -> Point:
        make = hybrid if algorithm == "hybridjoin" else scan
        return make(size, workload, memory, algorithm)

    by_memory = tuple(
        Sample(name, megabytes, point(zipf(size), budget(size, megabytes), algorithm))
        for megabytes in memories for name, algorithm in three
    )  # fmt: skip
    return [
        Experiment(
            id="hybrid-10c", paper=PAPER, figure="Figure 10(c)", title="Size of R at fixed memory",
            setup=f"Memory {budget(size, 50) / 1e6:g} MB, skew 1.", x=ROWS, y=log_rate,
            samples=tuple(
                Sample(name, million, point(zipf(size, million), budget(size, 50), algorithm))
                for million in rows for name, algorithm in three
            ),
            claims=(
                Claim("HYBRIDJOIN is above MESHJOIN and INLJ at all sizes.", "above",
                      above("HYBRIDJOIN", "MESHJOIN", "INLJ")),
            ),
        ),
        Experiment(
            id="hybrid-10d", paper=PAPER, figure="Figure 10(d)", title="Memory",
            setup=f"R {zipf(size).rows / 1e6:g} M tuples, skew 1.", x=MEMORY, y=log_rate, samples=by_memory,
            claims=(
                Claim("HYBRIDJOIN is above MESHJOIN and INLJ at all memories.", "above",
                      above("HYBRIDJOIN", "MESHJOIN", "INLJ")),
            ),
        ),
        Experiment(
            id="hybrid-11", paper=PAPER, figure="Figure 11", title="Predicted and measured cost",
            setup=f"R {zipf(size).rows / 1e6:g} M tuples, skew 1.", x=MEMORY, y=log_rate, samples=by_memory,
            claims=(
                Claim("The predicted cost is close to the measured one, for each of the three joins.",
                      "closely resembles", model_within(0.1)),
            ),
        ),
    ]  # fmt: skip
