"""One budget for the relations of a star: small ones are held whole, large ones share the rest.

Relations are considered from the smallest to the largest. One is held whole if that leaves at least half of the free
memory for larger ones, or if it is the last. The rest is divided among the others in steps. Each step goes to the
relation whose join gains most by the cost model: the one for which it saves the most seconds per stream row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from semistream.core.errors import BudgetTooSmallError
from semistream.core.units import SMALL_RELATION, is_share, parse_bytes
from semistream.costs import costs_of
from semistream.relation.relation import Relation
from semistream.relation.relation_files import bytes_in_memory
from semistream.relation.storage import manifest as manifests
from semistream.relation.stores.store_path import Place
from semistream.spark.joining.held.image import MOST_HELD, RESULT_ROOM, room_for
from semistream.spark.joining.join_plan import ALGORITHM
from semistream.tuner import best_split, describe

__all__ = ["Need", "Use", "need_of", "shares", "split"]

_STEPS = 16
"""Number of steps in which memory is divided among large relations."""

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


@dataclass(frozen=True)
class Use:
    """A join with a relation of a star."""

    place: Place
    held: bool = True
    """Whether the join can use the copy of a relation that is held whole, if the relation has one row per key."""
    dated: bool = False
    """Whether the join asks for one of several rows per key, the one that was valid at a time."""

    @classmethod
    def of(
        cls, place: Place, *, as_of: str | None, condition: str, on_missing: str | None, algorithm: str | None,
        cached: bool = True,
    ) -> Use:  # fmt: skip
        """Return the use of a join with these parameters; ``cached`` is False if it must not use what others cached."""
        dated = as_of is not None
        usual = algorithm in (None, ALGORITHM) and on_missing != "park" and not (dated and condition != "equal")
        return cls(place, usual and cached, dated)

    def shares_image(self, need: Need) -> bool:
        """Return whether this join uses the same copy of R as others with R, if R fits into its memory."""
        return self.held and (need.unique or self.dated)


def shares(memory: int | float | str, uses: Sequence[Use]) -> dict[Place, int]:
    """Return the bytes of ``memory`` for each join with a relation.

    Joins with the same relation share one copy of it if it is held whole. Otherwise each has a cache of its own, in an
    equal part of the relation's bytes.
    """
    count = Counter(use.place for use in uses)
    needs = {place: need_of(place) for place in count}
    total = parse_bytes(memory, of=sum(need.nbytes for need in needs.values()))
    small = {place: need.whole + RESULT_ROOM for place, need in needs.items() if need.small and is_share(memory)}
    alone = {use.place for use in uses if not use.shares_image(needs[use.place])}
    rest = [
        replace(need, whole=need.whole * count[place]) if place in alone else need
        for place, need in needs.items()
        if place not in small
    ]
    found = split(max(total - sum(small.values()), total // 2, 1) if small else total, rest)
    return small | {
        place: nbytes if nbytes >= needs[place].whole and place not in alone else max(1, nbytes // count[place])
        for place, nbytes in found.items()
    }


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
    return lambda memory: best_split(costs_of(ALGORITHM), setting, max(1, memory // len(manifest.shards))).rate
