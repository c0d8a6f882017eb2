"""A plan for given machines: R is in an object store, a part of it is cached on their disks, and cores share a disk.

Differences from `plan`, where each shard has its own disk:

* A page that is not in a machine's local disk cache is read from the store; a task has many requests in flight.
* Each of ``h`` machines has 1/h of the shards, so its cache holds ``h`` times as much of what they read.
* The tasks of a machine share its disk. If all of them read, each gets a part of its throughput.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import Any

from semistream.core.units import format_bytes
from semistream.costs import Constants
from semistream.relation.devices.store_device import CALLS, ON_THE_WAY
from semistream.relation.stores.object_store import ObjectStore
from semistream.tuner.planner import Plan, PlanError

__all__ = ["Machines", "parse_machines", "parse_seconds"]

_IN_FLIGHT = CALLS * ObjectStore.at_once
"""Requests of a task to the store that are in flight together."""
_WORKER = 300 << 20
"""Bytes of a Python worker with its libraries, without the memory of joins."""
_BYTES_A_SECOND = 100e6
"""Assumed throughput of an object store for one task, in bytes per second."""


@dataclass(frozen=True)
class Machines:
    """Machines of a cluster, and the latency of R's object store; without a latency R is on each machine's disk."""

    hosts: int
    cores: int
    latency: float | None = None
    local: int = 0
    """Bytes of each machine's local disk cache."""

    def costs(self, constants: Constants, relation_bytes: int) -> Constants:
        """Return the read costs of a task on these machines, for pages spread evenly over R."""
        disk = dataclasses.replace(
            constants, queued_seek_seconds=min(constants.seek_seconds, constants.queued_seek_seconds * self.cores),
            transfer_seconds=constants.transfer_seconds * self.cores,
        )  # fmt: skip
        if self.latency is None:
            return disk
        here = min(1.0, self.local * self.hosts / max(1, relation_bytes))
        far = 1.0 - here
        transfer = max(constants.transfer_seconds, constants.page_bytes / _BYTES_A_SECOND)
        return dataclasses.replace(
            disk, name=f"{constants.name}, store of {self.latency * 1000:g} ms",
            seek_seconds=here * disk.seek_seconds + far * self.latency,
            queued_seek_seconds=here * disk.queued_seek_seconds + far * self.latency / _IN_FLIGHT,
            transfer_seconds=here * disk.transfer_seconds + far * transfer,
        )  # fmt: skip

    def advice(self, found: Plan) -> dict[str, Any]:
        """Return the number of shards and the settings for these machines, or raise if there are too few."""
        needed = math.ceil(found.shards / self.cores)
        if needed > self.hosts:
            raise PlanError(
                f"{found.shards} shards need {needed} machines of {self.cores} cores, but there are {self.hosts}; give "
                "more machines or memory, a larger local tier if R is in a store, or a lower rate"
            )
        workers = self.cores * (_WORKER + (ON_THE_WAY if self.latency is not None else 0))
        return {
            "hosts_needed": needed,
            # a multiple of all cores, so that no task runs alone in a last wave
            "shards": math.ceil(found.shards / (self.hosts * self.cores)) * self.hosts * self.cores,
            "memory": found.memory,
            "memory_overhead": found.memory + workers,
            "local_per_host": self.local,
        }

    def lines(self, found: Plan, relation_bytes: int) -> list[tuple[str, str]]:
        """Return the advice as lines of text."""
        told = self.advice(found)
        lines = [
            ("machines", f"{told['hosts_needed']} of {self.hosts} are enough, {self.cores} cores each"),
            ("build with", f"--shards {told['shards']}"),
            ("join with", f"memory={format_bytes(found.memory)}, of which each machine has {self.share(found)}"),
            ("Spark", f"spark.executor.memoryOverhead={math.ceil(told['memory_overhead'] / (1 << 20))}m"),
        ]
        if self.latency is not None:
            part = self.local * self.hosts / max(1, relation_bytes)
            lines.append(("local tier", f"{format_bytes(self.local)} per machine, {min(1.0, part):.0%} of R in total"))
        return lines

    def share(self, found: Plan) -> str:
        """Return the part of the joins' memory on one machine, as long as shards do not move."""
        return format_bytes(math.ceil(found.memory / self.hosts))


def parse_machines(text: str) -> tuple[int, int]:
    """Return hosts and cores of ``"4x8"``.

    >>> parse_machines("4x8")
    (4, 8)
    """
    found = re.fullmatch(r"\s*(\d+)\s*[x×*]\s*(\d+)\s*", text)
    if found is None or not int(found[1]) or not int(found[2]):
        raise PlanError(f"{text!r} is not a cluster; write machines and cores of each, such as 4x8")
    return int(found[1]), int(found[2])


def parse_seconds(text: str) -> float:
    """Return the seconds of ``"20ms"``, ``"0.02s"`` or ``"500us"``.

    >>> parse_seconds("20ms")
    0.02
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(us|μs|ms|s)\s*", text)
    if found is None:
        raise PlanError(f"{text!r} is not a time; write it with its unit, such as 20ms")
    return float(found[1]) / {"us": 1e6, "μs": 1e6, "ms": 1e3, "s": 1.0}[found[2]]
