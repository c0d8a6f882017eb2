"""The interface of cost models: they map a setting, a budget and options to memory parts and a service rate.

`costs_of` finds the model of an algorithm. A model describes *our* implementation: bytes are those of our structures,
and counts are those of our loops.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from semistream.core.errors import BudgetTooSmallError
from semistream.core.units import format_bytes
from semistream.costs.basis.pricing import Operations, simulated_seconds
from semistream.costs.basis.setting import LentParts, Setting
from semistream.joins import find
from semistream.joins.shares import PAIR_BYTES, Lending, common_parts, least_budget

__all__ = ["Costs", "Memory", "Prediction", "common_memory", "least_memory"]

Options = Mapping[str, Any]

_COMMON = ("stream buffer", "matches", "results")


@dataclass
class Memory:
    """A budget that is being divided: the bytes of each part, and the free bytes."""

    total: int
    parts: dict[str, int] = field(default_factory=dict)
    lent: LentParts = field(default_factory=LentParts)

    @property
    def free(self) -> int:
        """Free bytes; negative if the budget is too small."""
        return self.total - sum(self.parts.values())

    def give(self, name: str, size: float) -> int:
        """Reserve ``size`` bytes for a part and return them."""
        self.parts[name] = self.parts.get(name, 0) + int(size)
        return int(size)

    @property
    def pairs(self) -> int:
        """Maximum number of matches held."""
        return self.lent.pairs or self.parts["matches"] // PAIR_BYTES

    @property
    def inbox(self) -> int:
        """Bytes of the stream buffer."""
        return self.lent.inbox or self.parts["stream buffer"]


def common_memory(setting: Setting, total: int, *, index: bool) -> Memory:
    """Reserve what every join needs first: index, stream buffer, matches, results, a page for single look-ups."""
    memory = Memory(total, lent=setting.lent)
    if index:
        memory.give("index", setting.index_bytes)
    inbox, pairs, results = common_parts(total, setting.lent.lending)
    memory.give("stream buffer", inbox)
    memory.give("matches", pairs * PAIR_BYTES)
    memory.give("results", results)
    memory.give("look-up page", _look_up_page(setting))
    return memory


def least_memory(setting: Setting, own: int, *, index: bool) -> int:
    """Return the smallest budget of a join whose own parts need ``own`` bytes, computed as in the joins."""
    own += _look_up_page(setting) + (setting.index_bytes if index else 0)
    return least_budget(own, setting.lent.lending)


def _look_up_page(setting: Setting) -> int:
    return setting.frame_bytes if setting.lent.lending is Lending.NOTHING else 0


@dataclass(frozen=True)
class Prediction:
    """The prediction of a model for a join."""

    algorithm: str
    memory: int
    """The budget, bytes."""
    parts: dict[str, int]
    """Bytes of each part of the budget."""
    options: dict[str, Any]
    """Options of the join, ready for `semistream.create`."""
    operations: Operations
    """Expected counts per stream tuple."""
    reads: float
    """Seeks per stream tuple."""
    pages_read: float
    """Pages read per stream tuple."""
    io_seconds: float
    """Device time per stream tuple."""
    seconds: float
    """Time per stream tuple."""
    details: dict[str, float] = field(default_factory=dict)
    """Intermediate results of the model, such as ``w``, ``h_S`` and ``h_R``."""

    @property
    def rate(self) -> float:
        """``μ``: stream tuples per second."""
        return 1.0 / self.seconds

    @property
    def hit_ratio(self) -> float:
        """Share of the stream that a cache answers."""
        return self.operations.cache_hits

    def as_dict(self) -> dict[str, Any]:
        """Return everything as numbers and text, for JSON."""
        return {
            "algorithm": self.algorithm, "rate": self.rate, "hit_ratio": self.hit_ratio, "memory": self.memory,
            "options": self.options, "parts": self.parts, "reads": self.reads, "pages_read": self.pages_read,
            "io_seconds": self.io_seconds, "seconds": self.seconds, "details": self.details,
        }  # fmt: skip


class Costs(ABC):
    """The cost model of one algorithm."""

    id: ClassVar[str]
    """The algorithm, as the registry names it."""

    @abstractmethod
    def memory(self, setting: Setting, memory: int, **options: Any) -> dict[str, int]:
        """Return how the join splits a budget, by the names of its reservations.

        Raises
        ------
        BudgetTooSmallError
            If the budget is too small for these options.
        """

    @abstractmethod
    def predict(self, setting: Setting, memory: int, **options: Any) -> Prediction:
        """Return the prediction for the join's steady state with a budget and options."""

    def quick(self, setting: Setting, memory: int, **options: Any) -> Prediction:
        """Return `predict`, or a faster approximation of it, for a search."""
        return self.predict(setting, memory, **options)

    def rate(self, setting: Setting, memory: int, **options: Any) -> float:
        """Return ``μ``, the stream tuples per second."""
        return self.predict(setting, memory, **options).rate

    @abstractmethod
    def choices(self, setting: Setting, memory: int) -> dict[str, list[Any]]:
        """Return the options worth tuning and the values worth trying, the coarse grid of a tuner."""

    def grid(self, setting: Setting, memory: int) -> Iterator[dict[str, Any]]:
        """Yield all combinations of `choices`."""
        combined: list[dict[str, Any]] = [{}]
        for name, values in self.choices(setting, memory).items():
            combined = [{**chosen, name: value} for chosen in combined for value in values]
        yield from combined

    def _result(
        self,
        setting: Setting,
        memory: Memory,
        options: Options,
        operations: Operations,
        *,
        reads: float,
        pages: float,
        seek: float | None = None,
        details: Mapping[str, float],
    ) -> Prediction:
        io_seconds = reads * (setting.queued_seek if seek is None else seek) + pages * setting.transfer
        costs = setting.constants
        seconds = simulated_seconds(find(self.id).overlap, operations, io_seconds, costs, costs.factor(self.id))
        return Prediction(
            self.id, memory.total, memory.parts, dict(options), operations, reads, pages, io_seconds, seconds,
            dict(details),
        )  # fmt: skip

    def too_small(self, setting: Setting, memory: Memory, needed: float) -> BudgetTooSmallError:
        """Return the error for a budget that would need ``needed`` bytes more than are free."""
        others = sum(size for name, size in memory.parts.items() if name not in _COMMON)
        minimum = least_budget(int(others + needed) + 1, setting.lent.lending)
        return BudgetTooSmallError(
            f"memory of {memory.total:,} B is too small for {self.id}: it needs about {minimum:,} B "
            f"({format_bytes(minimum)}) for a relation of {setting.pages:,} pages with these options; "
            "give more memory, or choose smaller parts",
            minimum,
        )
