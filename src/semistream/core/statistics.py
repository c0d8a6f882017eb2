"""What a join did, counted in the operations that the papers' cost models price.

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
    """Stream tuples offered, NULL keys included (``c_S``)."""
    rows_out: int = 0
    """Result rows emitted (``c_O``)."""
    rows_done: int = 0
    """Stream tuples that have left the join for good."""
    null_keys: int = 0
    """Stream tuples whose key was NULL."""
    unmatched: int = 0
    """Stream tuples without a partner in R, NULL keys included."""
    steps: int = 0
    """Turns of the algorithm's loop."""
    cache_hits: int = 0
    """Stream tuples served by a tuple or page cache, without a read of their own."""
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
    """Pages read that a stream tuple waited for; 0 of joins that do not tell."""
    reads: int = 0
    """Requests to the device: runs of pages (each pays one seek)."""
    bytes_read: int = 0
    """Bytes read from the device."""
    io_seconds: float = 0.0
    """Time spent reading."""
    busy_seconds: float = 0.0
    """Time spent in ``offer`` and ``step``, reading included."""
    store_requests: int = 0
    """Requests to an object store, of a relation that is in one."""
    store_bytes: int = 0
    """Bytes that came from there, those between wanted pages included."""
    local_pages: int = 0
    """Of the pages read, those that the machine's local tier had."""

    @property
    def hit_ratio(self) -> float:
        """Share of finished stream tuples that memory answered without a read, of those with a key."""
        keyed = self.rows_done - self.null_keys
        return self.cache_hits / keyed if keyed > 0 else 0.0

    @property
    def service_rate(self) -> float:
        """Stream tuples finished for each second the join was busy."""
        return self.rows_done / self.busy_seconds if self.busy_seconds else 0.0

    def since(self, earlier: JoinStatistics) -> JoinStatistics:
        """Return what was done after an earlier reading."""
        names = [field.name for field in dataclasses.fields(self)]
        return JoinStatistics(**{name: getattr(self, name) - getattr(earlier, name) for name in names})

    def as_dict(self) -> dict[str, float]:
        """Return counters and derived ratios, for JSON and metrics."""
        values: dict[str, float] = dataclasses.asdict(self)
        return values | {"hit_ratio": self.hit_ratio, "service_rate": self.service_rate}
