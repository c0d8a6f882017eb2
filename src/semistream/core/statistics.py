"""Counters of a join, in the operations that the papers' cost models price.

Reports, tuner and Spark see a join only through these numbers.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

__all__ = ["JoinStatistics"]


@dataclass
class JoinStatistics:
    """Counters of one join. Counts of operations carry the cost-model symbol that prices them."""

    rows_in: int = 0
    """Input stream tuples, including NULL keys (``c_S``)."""
    rows_out: int = 0
    """Result rows emitted (``c_O``)."""
    rows_done: int = 0
    """Stream tuples that have left the join for good."""
    null_keys: int = 0
    """Stream tuples whose key was NULL."""
    unmatched: int = 0
    """Stream tuples without a match in R, including NULL keys."""
    steps: int = 0
    """Iterations of the algorithm's loop."""
    cache_hits: int = 0
    """Stream tuples answered by a tuple or page cache, without a page read."""
    probes: int = 0
    """Hash table look-ups (``c_H``)."""
    appended: int = 0
    """Stream tuples put into the stream table and queue (``c_A``)."""
    evicted: int = 0
    """Stream tuples removed from them again (``c_E``)."""
    recorded: int = 0
    """Frequencies recorded (``c_F``)."""
    buffered: int = 0
    """Stream tuples put into an intermediate buffer (``c_AI``)."""
    pages_read: int = 0
    """Pages of R, and leaves of a non-clustered index, read from the device."""
    pages_useful: int = 0
    """Pages read that a stream tuple waited for; 0 for joins that do not count them."""
    reads: int = 0
    """Requests to the device: runs of pages (each pays one seek)."""
    bytes_read: int = 0
    """Bytes read from the device."""
    io_seconds: float = 0.0
    """Time spent reading."""
    busy_seconds: float = 0.0
    """Time spent in ``offer`` and ``step``, including reads."""
    store_requests: int = 0
    """Requests to the object store, if the relation is in one."""
    store_bytes: int = 0
    """Bytes read from the object store, including gaps between requested pages."""
    local_pages: int = 0
    """Pages read from the machine's local disk cache, a part of `pages_read`."""

    @property
    def hit_ratio(self) -> float:
        """Share of finished stream tuples with a key that were answered from memory, without a read."""
        keyed = self.rows_done - self.null_keys
        return self.cache_hits / keyed if keyed > 0 else 0.0

    @property
    def service_rate(self) -> float:
        """Stream tuples finished per second of busy time."""
        return self.rows_done / self.busy_seconds if self.busy_seconds else 0.0

    def since(self, earlier: JoinStatistics) -> JoinStatistics:
        """Return the difference to earlier counters."""
        names = [field.name for field in dataclasses.fields(self)]
        return JoinStatistics(**{name: getattr(self, name) - getattr(earlier, name) for name in names})

    def as_dict(self) -> dict[str, float]:
        """Return counters and derived ratios, for JSON and metrics."""
        values: dict[str, float] = dataclasses.asdict(self)
        return values | {"hit_ratio": self.hit_ratio, "service_rate": self.service_rate}
