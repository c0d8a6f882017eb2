"""One budget for the relations of a star: small ones are held whole, large ones share the rest.

Relations are considered from the smallest to the largest. One is held whole if that leaves at least half of the free
memory for larger ones, or if it is the last. The rest is divided among the others in steps. Each step goes to the
relation whose join gains most by the cost model: the one for which it saves the most seconds per stream row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from semistream.core.errors import BudgetTooSmallError
from semistream.core.units import SMALL_RELATION
from semistream.costs import costs_of
from semistream.relation.relation import Relation
from semistream.relation.relation_files import bytes_in_memory
from semistream.relation.storage import manifest as manifests
from semistream.relation.stores.store_path import Place
from semistream.spark.joining.held.image import MOST_HELD, room_for
from semistream.tuner import best_split, describe

__all__ = ["Need", "need_of", "split"]

_STEPS = 16
"""Number of steps in which memory is divided among large relations."""
_MODEL = "adaptivejoin"

Rate = Callable[[int], float]


@dataclass(frozen=True)
class Need:
    """The memory that a relation of a star needs."""

    path: Place
    nbytes: int
    whole: int
    """Bytes to hold the relation whole, with room to grow."""
    unique: bool = True
    """Whether the relation has one row per key."""

    @property
    def small(self) -> bool:
        """Whether the relation is held whole if the budget is a share of the relations, however small the share."""
        return self.nbytes <= SMALL_RELATION


def need_of(path: Place) -> Need:
    """Return what the newest version of a relation needs."""
    manifest = manifests.load(path)
    nbytes = bytes_in_memory(manifest)
    return Need(path, nbytes, room_for(manifest.rows, nbytes, dated=manifest.times is not None), manifest.unique)


def split(total: int, needs: Sequence[Need], rate_of: Callable[[Place], Rate] | None = None) -> Mapping[Place, int]:
    """Return the bytes that each relation gets of ``total``.

    >>> from pathlib import Path
    >>> needs = [Need(Path(name), size, size) for name, size in (("r", 9000), ("days", 10), ("stores", 40))]
    >>> {str(path): size for path, size in split(1000, needs).items()}
    {'days': 10, 'stores': 40, 'r': 950}
    """
    found: dict[Place, int] = {}
    free, left = total, sorted({need.path: need for need in needs}.values(), key=lambda need: need.whole)
    while left and left[0].nbytes <= MOST_HELD and left[0].whole <= (free // 2 if len(left) > 1 else free):
        found[left[0].path] = left[0].whole
        free -= left.pop(0).whole
    if len(left) == 1:
        found[left[0].path] = max(1, free)
    elif left:
        found |= _by_worth(free, [need.path for need in left], rate_of or _predicted)
    return found


def _by_worth(free: int, paths: Sequence[Place], rate_of: Callable[[Place], Rate]) -> dict[Place, int]:
    step = max(1, free // (_STEPS * len(paths)))
    shares = dict.fromkeys(paths, step)
    rates = {path: rate_of(path) for path in paths}
    seconds = {path: _seconds(rates[path], step) for path in paths}
    for _ in range((_STEPS - 1) * len(paths)):
        gains = {path: seconds[path] - _seconds(rates[path], shares[path] + step) for path in paths}
        best = max(paths, key=lambda path: (gains[path], -shares[path]))
        shares[best] += step
        seconds[best] = _seconds(rates[best], shares[best])
    return shares


def _seconds(rate: Rate, memory: int) -> float:
    """Return the predicted seconds per stream row; very many if the memory is too small for the join."""
    try:
        return 1.0 / max(rate(memory), 1e-9)
    except BudgetTooSmallError as error:
        return 1e6 * error.minimum / max(1, memory)  # decreases with every step towards the minimum


def _predicted(path: Place) -> Rate:
    manifest = manifests.load(path)
    largest = max(range(len(manifest.shards)), key=lambda number: manifest.shards[number].pages)
    with Relation.open(path, shards=[largest]) as shard:
        setting = describe(shard, None)
    return lambda memory: best_split(costs_of(_MODEL), setting, max(1, memory // len(manifest.shards))).rate
