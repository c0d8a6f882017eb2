"""SSIJ §VI-D: deadlines and bursts, Figure 16 and Table III."""

from __future__ import annotations

import dataclasses

from semistream.joins.ssij.ssij_layout import READ_EXTRA
from semistream_lab.experiments.experiment import Claim, Experiment
from semistream_lab.experiments.judge.claims import falls, rises
from semistream_lab.experiments.judge.outcome import Outcome
from semistream_lab.experiments.papers.reasons.deadline_reasons import DeadlineLimit
from semistream_lab.experiments.papers.ssij.ssij_comparing import PRICED, UNPRICED
from semistream_lab.experiments.papers.ssij.ssij_setups import PAPER, SHORTER, locality, table_two
from semistream_lab.experiments.scales import Size
from semistream_lab.experiments.spec import PAGE_BYTES, Axis, Point, Printed, Sample, Taken, Verdict, Workload

__all__ = ["SLOW", "experiments"]

PUBLISHED_RATES = {10.0: 550.0, 60.0: 5500.0, 120.0: 22_000.0}
"""Tuples per second that the paper reports as served within a deadline, by the deadline in seconds."""
_SCAN = 200
"""Pages of the longest read (Table II)."""
_SCALED = (
    "R, memory, thresholds and deadlines are {part:g} of the paper's, so rates are the paper's own. SSIJ has the "
    "paper's seek time and maxScan, because few tuples share a phase and each key that is needed alone costs a seek. "
    "The read buffer is negligible in the paper's memory and is added to ours. The other joins read large parts of R "
    "in one read: their seek time is {part:g} of the paper's, as their buffers are."
)
_LONG = "SSIJ in 4 min"
_PUBLISHED_SCAN = 10e6
"""Bytes per second of a scan that takes the 9 min of a tuple in the paper's MESHJOIN, for an R of 5 GB."""
_PUBLISHED_MESH = 5500.0
"""Tuples per second that MESHJOIN serves in the paper."""
SLOW, _PARTITIONED = "MESHJOIN at its highest rate", "partition-based join at 5500/s"


def experiments(size: Size) -> list[Experiment]:
    """Describe the experiments."""
    return [_deadlines(size), _bursts(size)]


def _driven(workload: Workload, memory: float, part: float, deadline: float, **settings: object) -> Point:
    """Return a point of SSIJ with a deadline, on the paper's disk: a deadline limits the number of seeks."""
    options = {
        **table_two(part, memory, workload), "max_scan": _SCAN, "input_limit": int(memory / 40),
        "deadline": deadline * part,
    }  # fmt: skip
    return Point(
        task="sustained", workload=workload, algorithm="ssij", memory=int(memory) + _SCAN * (PAGE_BYTES + READ_EXTRA),
        options=options, settings={"counted": True, **settings},
    )  # fmt: skip


def _deadlines(size: Size) -> Experiment:
    part = size.pick(0.1, 0.005, 0.0125)
    workload = Workload(rows=int(40_000_000 * part), row_bytes=128, fill=0.8, rows_per_key=160)
    memory = 0.075 * workload.nbytes
    deadlines = size.pick([10.0, 30.0, 60.0, 120.0], [20.0, 60.0], [20.0, 60.0])
    tuples = size.pick(150_000, 20_000, 50_000)
    rates = size.pick(PUBLISHED_RATES, {60.0: 5500.0}, {60.0: 5500.0})
    scan = {"seek_pages": round(0.0085 * part / (PAGE_BYTES / 100e6), 2)}
    slow = Point(
        workload=workload, algorithm="meshjoin", memory=int(memory), seek_seconds=0.0085 * part, options=scan,
        windows=3, passes=0.2, settings={"bytes": {"waiting": 8.0 * workload.stream_bytes + 4}},
    )  # fmt: skip
    partitioned = Point(
        task="delays", workload=workload, algorithm="partitioned_join", memory=int(memory), options={"in_flight": 1},
        seek_seconds=0.0085 * part, windows=3,
        settings={"rate": _PUBLISHED_MESH, "tuples": size.pick(600_000, 20_000, 50_000), "window": [0.0, 1.0],
                  "results": True},
    )  # fmt: skip
    return Experiment(
        id="ssij-16", paper=PAPER, figure="Figure 16", title="Deadlines",
        setup=f"R {workload.rows / 1e6:g} M tuples, 160 per key, memory 7.5 % of R, skew 1.",
        x=Axis("deadline at the paper's size [s]", format="~g"),
        y=Axis("highest rate that meets all deadlines [tuples/s]", log=True, zero=False),
        samples=(
            *(Sample("SSIJ", deadline, _driven(workload, memory, part, deadline, tuples=tuples, between=[100.0, 1e5],
                                               warm=0.4)) for deadline in deadlines),
            *(Sample(f"SSIJ at {rate:g}/s", deadline, dataclasses.replace(
                _driven(workload, memory, part, deadline, tuples=tuples, rate=rate, warm=0.4), task="kept deadlines"
            ), aside=True) for deadline, rate in rates.items()),
            Sample(_LONG, 240.0, _driven(workload, memory, part, 240.0, tuples=tuples // 2, between=[100.0, 1e5],
                                         warm=0.4), aside=True),
            Sample(SLOW, 0.0, slow, aside=True),
            Sample(_PARTITIONED, 0.0, partitioned, aside=True),
        ),
        claims=(
            Claim("The rate rises with the deadline.", "550 tuples/s at 10 s to 22 000 at 120 s",
                  rises("SSIJ", at_least=2.0, because=_few_phases), standing="construction"),
            Claim("Deadlines are kept at the published rates.", "550/s in 10 s, 5500/s in 1 min, 22 000/s in 2 min",
                  _kept, impossible="22 000 tuples/s in 2 min need most of R once a minute, and the paper's MESHJOIN "
                  "takes 9 min for a pass over R"),
            Claim("At MESHJOIN's highest rate its delay is an order above the deadline that SSIJ keeps.",
                  "9 min and 1 min, at 5500/s", _order_above,
                  impossible="a scan that takes 9 min reads 10 MB/s, at which the pages of the tuples that arrive in "
                  "half a minute take minutes"),
            Claim("The partition-based join may take even longer than MESHJOIN.", "even longer than MeshJoin",
                  _even_longer),
        ),
        metric="sustained", modelled=False,
        published=tuple(Printed(x, y) for x, y in PUBLISHED_RATES.items()) if size.published else (),
        notes=f"{_SCALED.format(part=part)} {UNPRICED}" if size.published else "",
        taken=(Taken("keys of R", "250 000, so 160 tuples per key", "as in Table II, with R of 5 GB"),
               Taken("bytes of a waiting tuple", "ours for SSIJ, 164 for MESHJOIN",
                     "because MESHJOIN's delay at its highest rate, one pass over R, does not depend on them")),
    )  # fmt: skip


def _few_phases(outcome: Outcome) -> str:
    none = [f"{found.x:g} s" for found in outcome.line("SSIJ") if "join_phases" not in found.record]
    text = _so_many_seeks(outcome)
    if none:
        text += f" At {', '.join(none)} no rate of the search met the deadline; the point is the search's lower end."
    return text


def _kept(outcome: Outcome) -> Verdict:
    texts, holds = [], True
    for name, record in outcome.aside.items():
        if name.startswith("SSIJ at"):
            holds = holds and bool(record["sustained"]) and record["late"] == 0
            rest = "" if record["sustained"] else ", and memory overflowed"
            texts.append(f"{name}: {record['late']:,} of {record['tuples']:,} tuples late{rest}")
    return Verdict(holds, "; ".join(texts), "" if holds else _so_many_seeks(outcome))


def _so_many_seeks(outcome: Outcome) -> str:
    """Explain what any join with the paper's phases could serve within a deadline, and what was measured."""
    limit, long = _limit(outcome), outcome.aside.get(_LONG, {})
    part = _full_size(outcome)
    rates = ", ".join(
        f"{limit.rate(found.x * part):,.0f}/s in {found.x:g} s ({found.y:,.0f} were measured)"
        for found in outcome.line("SSIJ")
    )
    missed, seconds = limit.missed_keys(int(5500 * 30 * part)), limit.seconds(int(5500 * 30 * part)) / part
    text = (
        "A tuple that arrives as a join phase begins waits for this phase and the next, so a phase takes half of the "
        f"deadline at most. At 5500/s tuples of {missed / part:,.0f} keys that no cache holds arrive in 30 s, and the "
        f"cheapest plan of reads for their pages takes {seconds:.0f} s; all of R takes {limit.scan_seconds / part:.0f} "
        "s. With an ideal cache, the best plans and no time for anything but reads, the paper's phases can keep "
        f"{rates}"
    )
    return f"{text}. Two passes over R fit into 4 min: {long['sustained']:,.0f}/s." if "sustained" in long else text


def _limit(outcome: Outcome, bytes_per_second: float = 100e6) -> DeadlineLimit:
    """Return what limits SSIJ in this experiment, on a disk with this transfer rate."""
    point = outcome.experiment.samples[0].point
    workload = point.workload
    return DeadlineLimit(
        workload.rows // workload.rows_per_key,
        workload.rows_per_key * workload.row_bytes / (PAGE_BYTES * workload.fill),
        point.memory // PAGE_BYTES, seek=point.seek_seconds, transfer=PAGE_BYTES / bytes_per_second, max_scan=_SCAN,
    )  # fmt: skip


def _full_size(outcome: Outcome) -> float:
    """Return how many seconds here correspond to one second of the paper."""
    first = outcome.experiment.samples[0]
    return float(first.point.options["deadline"]) / first.x


def _mesh_delay(outcome: Outcome) -> tuple[float, float]:
    """Return MESHJOIN's highest rate, and how long a tuple stays at that rate, in seconds at the paper's size."""
    record = outcome.aside[SLOW]
    waiting = record["memory_parts"]["stream table"] / record["waiting_bytes"]
    rate = float(record["counting" if "counting" in record else "rate"])
    return rate, waiting / rate / _full_size(outcome)


def _order_above(outcome: Outcome) -> Verdict:
    rate, delay = _mesh_delay(outcome)
    able = [found.x for found in outcome.line("SSIJ") if found.y >= rate]
    text = f"MESHJOIN serves {rate:,.0f} tuples/s at most, and a tuple stays {delay:.0f} s (at the paper's size)"
    slow = _limit(outcome, _PUBLISHED_SCAN).seconds(int(5500 * 30 * _full_size(outcome))) / _full_size(outcome)
    reason = (
        f"A tuple stays for one pass over R, {delay:.0f} s at our MESHJOIN's highest rate, at which it reads R at the "
        "speed of the disk. No join with SSIJ's phases keeps a tenth of that: in 10 s the best plans of reads allow "
        f"{_limit(outcome).rate(10.0 * _full_size(outcome)):,.0f} tuples/s. The published 9 min are a scan at 10 MB/s. "
        "On a disk that slow SSIJ could not keep 1 min at 5500/s either: the pages of the tuples that arrive in 30 s "
        f"would take {slow:,.0f} s."
    )
    if not able:
        most = max(found.y for found in outcome.line("SSIJ"))
        return Verdict(False, f"{text}; SSIJ serves {most:,.0f} at the longest deadline", reason)
    ratio = delay / able[0]
    return Verdict(ratio >= 9.0 * 0.9, f"{text}; SSIJ keeps {able[0]:g} s at that rate: {ratio:.1f}×",
                   "" if ratio >= 8.1 else reason)  # fmt: skip


def _even_longer(outcome: Outcome) -> Verdict:
    highest, delay = _mesh_delay(outcome)
    stays = delay * highest / _PUBLISHED_MESH  # a tuple stays until memory is full of later ones
    longest = outcome.aside[_PARTITIONED]["longest"] / _full_size(outcome)
    holds = longest > stays
    text = f"at 5500/s a tuple waits up to {longest:,.0f} s, and stays {stays:,.0f} s in MESHJOIN (at the paper's size)"
    return Verdict(holds, text, "" if holds else "all partitions fill up sooner than MESHJOIN's memory does")


def _bursts(size: Size) -> Experiment:
    workload = dataclasses.replace(locality(size), interval_rows=1 << 40)
    memory = 0.1 * workload.nbytes
    part = workload.rows / 80e6
    bursts = {10.0: 0.7, 25.0: 0.562, 50.0: 0.4, 70.0: 0.225}
    base = Point(
        task="burst", workload=workload, algorithm="ssij", memory=int(memory), seek_seconds=0.0085 * part,
        options={"input_limit": int(memory / 40), **table_two(part, memory, workload)},
    )  # fmt: skip
    settings = {
        "tuples": size.pick(1_000_000, 100_000, 200_000),
        "most": size.pick(20_000_000, 2_000_000, 4_000_000),
    }

    def as_long(outcome: Outcome) -> Verdict:
        found = [(one.x, one.y / part, one.record["nominal"]) for one in outcome.line("dynamic memory")]
        holds = all(seconds >= 0.9 * bursts[x] for x, seconds, _ in found)
        text = ", ".join(f"{seconds:.3g} s at +{x:g} %" for x, seconds, _ in found) + " (at the paper's size)"
        more = [x / 100 * seconds * nominal for x, seconds, nominal in found]
        reason = (
            "By then 34 000 to 76 000 more tuples have arrived in the paper than at its nominal 480 000/s. At 20 B "
            "each they are about a thousandth of the memory of 1 GB. Here "
            f"{min(more) / 1e6:.2g} to {max(more) / 1e6:.2g} M more have arrived (at the paper's size; nominal "
            f"{found[0][2]:,.0f}/s), because cached pages are evicted for them."
        )
        return Verdict(holds, text, "" if holds else reason)

    return Experiment(
        id="ssij-t3", paper=PAPER, figure="Table III", title="Bursts beyond the nominal rate",
        setup=f"R {workload.rows / 1e6:g} M tuples, memory 10 % of R, within one interval of a stream with locality.",
        x=Axis("burst above the nominal rate [%]", format="~g"),
        y=Axis("time until memory overflows [s]", log=True, zero=False, format="~g"),
        samples=tuple(
            Sample("dynamic memory", burst, dataclasses.replace(base, settings={**settings, "burst": burst / 100}))
            for burst in bursts
        ),
        claims=(
            Claim("Bursts are sustained at least as long as published.", "700, 562, 400, 225 ms at +10, 25, 50, 70 %",
                  as_long),
            Claim("The time shrinks with the burst.", "700 ms to 225 ms", falls("dynamic memory"),
                  standing="assumption"),
        ),
        metric="duration", modelled=False,
        published=tuple(Printed(x, y * part) for x, y in bursts.items()) if size.published else (),
        notes=f"{SHORTER} {PRICED}" if size.published else "",
    )  # fmt: skip
