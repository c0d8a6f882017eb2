"""Predicts the number of shards and their memory for a stream of a given rate, at sizes beyond any test machine.

R and the stream are divided into shards by the hash of the key. Each of ``n`` shards has 1/n of R's rows and, because
the frequent keys are spread at random, nearly 1/n of the stream. Only the most frequent key cannot be divided. If its
share of the stream is ``t``, its shard gets ``t + (1 - t)/n`` of the stream, of which ``t`` costs no more than a cache
hit if the join caches tuples. Every shard runs one join on its own device with its own memory. The plan is the smallest
number of shards with which the busiest shard keeps up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from semistream.core.errors import BudgetTooSmallError, SemistreamError
from semistream.core.units import format_count
from semistream.costs import Constants, Operations, Prediction, Setting, load_constants, simulated_seconds
from semistream.joins import find
from semistream.tuner.skew import check_exponent
from semistream.tuner.tuning import Tuning, compare

__all__ = ["Plan", "PlanError", "plan"]

_MOST_SHARDS = 65536
_PROMISING = 5


class PlanError(SemistreamError, ValueError):
    """A rate that no number of shards reaches with the given memory."""


@dataclass(frozen=True)
class Plan:
    """The size of a cluster."""

    shards: int
    memory_per_shard: int
    """Bytes that a shard can use: the given memory, or less if its part of R needs less."""
    wanted_rate: float
    """Stream tuples per second of all shards."""
    top_share: float
    """Share of the most frequent key in the stream."""
    tuning: Tuning
    """All algorithms compared, for a shard."""

    @property
    def prediction(self) -> Prediction:
        """The join of a shard."""
        return self.tuning.best

    @property
    def busiest_share(self) -> float:
        """Share of the stream that the busiest shard gets."""
        return self.top_share + (1.0 - self.top_share) / self.shards

    @property
    def rate(self) -> float:
        """Stream tuples per second that the cluster can process; the busiest shard is the limit."""
        if self.shards == 1:
            return self.prediction.rate
        hot = self.prediction.seconds
        if "front stage" in self.prediction.parts:
            setting = self.tuning.setting
            hit = Operations(rows_out=setting.rows_per_key, cache_hits=1.0, probes=1.0, recorded=1.0)
            hot = min(hot, simulated_seconds(find(self.prediction.algorithm).overlap, hit, 0.0, setting.constants))
        return 1.0 / (self.top_share * hot + (1.0 - self.top_share) / self.shards * self.prediction.seconds)

    @property
    def memory(self) -> int:
        """Bytes of all shards."""
        return self.shards * self.memory_per_shard

    def as_dict(self) -> dict[str, Any]:
        """Return everything as numbers and text, for JSON."""
        return {
            "shards": self.shards, "memory_per_shard": self.memory_per_shard, "memory": self.memory,
            "wanted_rate": self.wanted_rate, "rate": self.rate, "rate_per_shard": self.prediction.rate,
            "busiest_share": self.busiest_share, "hit_ratio": self.prediction.hit_ratio,
            "algorithm": self.prediction.algorithm, "options": self.prediction.options,
            "relation_bytes_per_shard": self.tuning.setting.pages * self.tuning.setting.page_bytes,
            "constants": self.tuning.setting.constants.name,
            "predictions": {found.algorithm: found.rate for found in self.tuning.predictions},
        }  # fmt: skip


def plan(
    relation_rows: int,
    row_bytes: int,
    rate: float,
    *,
    memory: int,
    exponent: float = 1.0,
    stream_bytes: int = 20,
    page_bytes: int = 8192,
    rows_per_key: float = 1.0,
    per_shard: bool = False,
    algorithms: list[str] | None = None,
    constants: Constants | None = None,
) -> Plan:
    """Return the smallest cluster that processes a rate.

    Parameters
    ----------
    relation_rows, row_bytes
        Size of R.
    rate
        Stream tuples per second.
    memory
        Bytes for the joins of all shards together, or of each shard with ``per_shard``. With a common budget, more
        shards do not cache more; each adds a device.
    exponent
        Zipf exponent of the stream.
    stream_bytes, page_bytes, rows_per_key
        Bytes of a stream tuple and of a page; rows of R with the same key.
    algorithms
        Algorithms to consider; by default all with a model.
    constants
        Costs of a machine and its device.

    Examples
    --------
    >>> found = plan(100_000_000, 120, 1_000_000, memory=1_200_000_000, constants=load_constants("disk-2010"),
    ...              algorithms=["cmeshjoin", "hybridjoin"])
    >>> found.shards > 1, found.rate >= 1_000_000
    (True, True)
    """
    if not rate > 0:
        raise PlanError(f"the rate must be above zero, not {rate}")
    if memory < 1:
        raise PlanError(f"memory must be at least one byte, not {memory}")
    check_exponent(exponent)
    constants = constants or load_constants()
    whole = Setting.planned(
        relation_rows, row_bytes, stream_bytes=stream_bytes, page_bytes=page_bytes, rows_per_key=rows_per_key,
        exponent=exponent, shape="random", constants=constants,
    )  # fmt: skip
    top = whole.law.share(1)
    known: dict[int, Plan | None] = {}
    lacking: list[BudgetTooSmallError] = []
    promising = algorithms

    def cluster(shards: int) -> Plan | None:
        """Return the plan with ``shards`` shards, or None if their memory is too small for every join."""
        nonlocal promising
        if shards not in known:
            rows = math.ceil(relation_rows / shards)
            setting = Setting.planned(
                rows, row_bytes, stream_bytes=stream_bytes, page_bytes=page_bytes,
                rows_per_key=min(rows_per_key, rows), exponent=exponent, shape="random", constants=constants,
            )  # fmt: skip
            each = memory if per_shard else memory // shards
            try:
                tuning = compare(setting, max(each, 1), promising)
            except BudgetTooSmallError as error:
                lacking.append(error)
                known[shards] = None
            else:
                known[shards] = Plan(shards, tuning.memory, rate, top, tuning)
                if promising is None:
                    # a shard is a smaller R, so a join that is far behind now stays behind
                    promising = [found.algorithm for found in tuning.predictions[:_PROMISING]]
        return known[shards]

    shards, last = 1, None
    while shards <= _MOST_SHARDS:
        found = cluster(shards)
        if found is None and last is not None:
            break  # memory is used up
        if found is not None and found.rate >= rate:
            return _smallest(cluster, shards // 2, shards, rate)
        if found is not None and last is not None and found.rate <= last.rate * 1.01:
            break  # more shards do not help any more
        last = found or last
        shards *= 2
    if last is None:
        raise lacking[0]  # the error for one shard
    best = max((found for found in known.values() if found is not None), key=lambda found: found.rate)
    raise PlanError(
        f"{format_count(rate)} tuples/s is too much: the maximum is {format_count(best.rate)}/s, with {best.shards} "
        f"shards of {best.memory_per_shard:,} B each ({best.prediction.algorithm}), of which the busiest gets "
        f"{best.busiest_share:.0%} of the stream; give more memory, or constants of a faster device"
    )


def _smallest(cluster: Any, low: int, high: int, rate: float) -> Plan:
    """Return the plan with the fewest shards above ``low``, at most ``high``, which is known to be sufficient."""
    while high - low > 1:
        middle = (low + high) // 2
        found = cluster(middle)
        if found is not None and found.rate >= rate:
            high = middle
        else:
            low = middle
    result: Plan = cluster(high)
    return result
