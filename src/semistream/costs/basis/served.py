"""Base of the models of joins that read from disk, alone or behind a cache that answers part of the stream."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from semistream.core.arrays import Floats
from semistream.costs.basis.model import Costs, Memory, Prediction, least_memory
from semistream.costs.basis.popularity import KeyClasses, key_classes
from semistream.costs.basis.pricing import Operations
from semistream.costs.basis.setting import Setting

__all__ = ["DiskCosts", "Served", "matched_in_passes"]


@dataclass(frozen=True)
class Served:
    """The work of a join per input tuple."""

    memory: Memory
    options: dict[str, Any]
    probes: float
    reads: float
    pages: float
    seek: float
    """Seconds of each read before its first page."""
    turns: float
    """Iterations of the loop."""
    events: Floats
    """How often each class of keys is matched, in events per tuple of the *whole* stream."""
    waits: bool = True
    """Whether tuples pass through hash table and queue."""
    recorded: float = 0.0
    buffered: float = 0.0
    cache_hits: float = 0.0
    admits_hits: bool = False
    """Whether tuples that the join's own cache answers also pass through hash table and queue."""
    details: dict[str, float] = field(default_factory=dict)

    @property
    def entering(self) -> float:
        """Share of input tuples that pass through hash table and queue."""
        return (1.0 if self.admits_hits else 1.0 - self.cache_hits) if self.waits else 0.0


class DiskCosts(Costs):
    """A model of a join that can also be behind a cache."""

    @abstractmethod
    def serve(self, setting: Setting, memory: int, keys: KeyClasses, **options: Any) -> Served:
        """Return the join's work with a budget, for the tuples that no cache has answered, as given by ``keys``."""

    index: ClassVar[bool] = True
    """Whether the join uses R's index."""

    @abstractmethod
    def least(self, setting: Setting, **options: Any) -> int:
        """Return the minimum bytes of the join's own parts."""

    def least_memory(self, setting: Setting, **options: Any) -> int:
        """Return the smallest budget, which a cache before the join must leave."""
        return least_memory(setting, self.least(setting, **options), index=self.index)

    def memory_of_long_turns(self, setting: Setting) -> int:
        """Return the memory with which an iteration answers many tuples; 0 if it always does."""
        return 0

    def memory(self, setting: Setting, memory: int, **options: Any) -> dict[str, int]:
        return self.serve(setting, memory, key_classes(setting), **options).memory.parts

    def predict(self, setting: Setting, memory: int, **options: Any) -> Prediction:
        served = self.serve(setting, memory, key_classes(setting), **options)
        entering = served.entering
        operations = Operations(
            rows_out=setting.rows_per_key, probes=served.probes, appended=entering, evicted=entering,
            recorded=served.recorded, cache_hits=served.cache_hits, buffered=served.buffered,
            steps=served.turns,
        )  # fmt: skip
        return self._result(
            setting, served.memory, served.options, operations,
            reads=served.reads, pages=served.pages, seek=served.seek, details=served.details,
        )  # fmt: skip


def matched_in_passes(keys: KeyClasses, every: float) -> Floats:
    """Return match events of keys whose page is read once per ``every`` tuples of the stream."""
    return -np.expm1(-keys.popularity * every) / every
