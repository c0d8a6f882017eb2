"""How far relations are behind the tables that they follow, as metrics of Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from semistream.relation.followed.follower import Lag

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["LagGauges"]

_HELP = {
    "commits": "Commits of the followed table that the relation does not have.",
    "seconds": "Age of the oldest commit that the relation does not have, in seconds; 0 if there is none.",
}


class LagGauges:
    """The last known lag of each relation. It is a collector for a registry of Prometheus."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lags: dict[str, Lag] = {}

    def set(self, relation: str, lag: Lag) -> None:
        """Store the lag of a relation."""
        with self._lock:
            self._lags[relation] = lag

    def collect(self) -> Iterator[Metric]:
        """Yield the series ``semistream_follow_lag_commits`` and ``semistream_follow_lag_seconds``."""
        from prometheus_client.core import GaugeMetricFamily

        with self._lock:
            lags = dict(self._lags)
        for part, told in _HELP.items():
            gauge = GaugeMetricFamily(f"semistream_follow_lag_{part}", told, labels=["relation"])
            for relation, lag in lags.items():
                gauge.add_metric([relation], getattr(lag, part))
            yield gauge
