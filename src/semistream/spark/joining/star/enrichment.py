"""``semistream.enrich``: join a stream with all of its dimensions in one call, in one pass if possible."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, cast

from pyspark.sql import DataFrame, Observation

from semistream.core.arguments import listed
from semistream.core.errors import UnsupportedJoinError
from semistream.core.units import is_share, parse_bytes
from semistream.joins import How
from semistream.joins.interface.conditions import ConditionName
from semistream.relation.relation import Relation
from semistream.relation.storage.secondary_index import Columns
from semistream.relation.stores.store_path import Place, place_of
from semistream.spark.joining.held.image import RESULT_ROOM
from semistream.spark.joining.join_plan import ALGORITHM, plan_join
from semistream.spark.joining.missing import After, OnMissing
from semistream.spark.joining.star.star_budget import Need, need_of, split
from semistream.spark.joining.stream_join import joined

__all__ = ["Dimension", "dimension", "enrich"]


@dataclass(frozen=True)
class Dimension:
    """A relation to join with, and the parameters of the join; see `dimension`."""

    relation: Relation | str | os.PathLike[str]
    memory: int | float | str | None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        """The path or address of the relation."""
        path = self.relation.path if isinstance(self.relation, Relation) else place_of(self.relation)
        if path is None:
            raise UnsupportedJoinError(
                "this relation has no files, so Spark's tasks cannot open it; build it with semistream.spark.build"
            )
        return path.absolute()

    @property
    def by(self) -> Columns | None:
        """The columns of the secondary index that is joined, if it is not R in the order of its key."""
        if (
            self.settings.get("by") is None
            and isinstance(self.relation, Relation)
            and self.relation.manifest is not None
        ):
            return self.relation.manifest.by
        return cast("Columns | None", self.settings.get("by"))

    def shares_image(self, need: Need) -> bool:
        """Return whether this dimension uses the same copy of R as others with R, if R fits into its memory."""
        given = self.settings
        one_answer = need.unique if given.get("as_of") is None else given.get("condition", "equal") == "equal"
        return (
            one_answer
            and given.get("hold") is not False
            and given.get("warm", True)
            and given.get("on_missing") != "park"
            and given.get("algorithm", ALGORITHM) == ALGORITHM
            and given.keys() <= _PARAMETERS  # others are options of the algorithm
        )


def dimension(
    relation: Relation | str | os.PathLike[str],
    *,
    on: str | Sequence[str],
    by: Columns | None = None,
    how: How | None = None,
    on_missing: OnMissing | None = None,
    park_for: str | float | timedelta | None = None,
    after_park: After | None = None,
    park_idle: bool = True,
    memory: int | float | str | None = None,
    algorithm: str = ALGORITHM,
    condition: ConditionName = "equal",
    as_of: str | None = None,
    columns: Sequence[str] | None = None,
    surrogate: str | None = None,
    unknown: Any = None,
    suffix: str = "_right",
    prefix: str = "",
    warm: bool = True,
    hold: bool | None = None,
    metrics: str | Observation | None = None,
    pins: str | os.PathLike[str] | None = None,
    local: int | float | str | None = None,
    missing_keys: bool = True,
    **options: Any,
) -> Dimension:
    """Return a dimension for `enrich`; the parameters are those of `semistream.join`.

    ``memory`` is the dimension's own budget. By default it gets a part of the budget of `enrich`. A dimension with
    ``as_of`` is a history: each row of the stream is joined with the version that was valid at the row's time. Other
    dimensions are joined as they are now.
    """
    settings = {
        "on": on, "by": by, "how": how, "on_missing": on_missing, "park_for": park_for, "after_park": after_park,
        "park_idle": park_idle, "algorithm": algorithm, "condition": condition, "as_of": as_of, "columns": columns,
        "surrogate": surrogate, "unknown": unknown, "suffix": suffix, "prefix": prefix, "warm": warm, "hold": hold,
        "metrics": metrics, "pins": pins, "local": local, "missing_keys": missing_keys,
    }  # fmt: skip
    return Dimension(relation, memory, settings | options)


_PARAMETERS = frozenset(inspect.signature(dimension).parameters)


def enrich(stream: DataFrame, dimensions: Sequence[Dimension], *, memory: int | float | str | None = None) -> DataFrame:
    """Return the stream's rows with the columns of all dimensions, as a chain of `semistream.join` does, but faster.

    Relations that fit into their part of the memory are held whole on each machine. They are joined in one pass,
    together with at most one larger relation, which costs a shuffle. Each further large relation costs one more
    shuffle, and so does a dimension with several rows per key or with parked rows. The key of a dimension may be a
    column of an earlier one. The same relation may be given several times, with different keys: it is held once, or has
    a cache for each key if it is read by page.

    Parameters
    ----------
    stream
        A DataFrame, usually streaming.
    dimensions
        What to join with, in order; each made by `dimension`. A later one sees the columns of earlier ones.
    memory
        What all dimensions without their own ``memory`` may hold together on one machine: bytes, text such as
        ``"64MB"``, or a share of the total size of their relations such as ``"5%"``. Small relations are held whole
        first; the cost model divides the rest among the large ones. A share is never less than what relations under
        16 MB need to be held whole. By default, each dimension gets the default memory of `semistream.join`.

    Examples
    --------
    >>> enriched = semistream.enrich(sales, [
    ...     semistream.dimension("/data/products", on="product_id", columns=["name", "price"]),
    ...     semistream.dimension("/data/days", on="order_date", prefix="order_"),
    ...     semistream.dimension("/data/days", on="ship_date", prefix="ship_"),
    ... ], memory="5%")                                                                  # doctest: +SKIP
    """
    given = list(dimensions)
    for one in given:
        if not isinstance(one, Dimension):
            raise UnsupportedJoinError(
                f"enrich takes dimensions made by semistream.dimension(relation, on=…), not {type(one).__name__}"
            )
        if memory is not None and one.memory is None and (by := one.by) is not None:
            raise UnsupportedJoinError(
                f"the memory of enrich is divided among relations in the order of their keys; give the dimension by "
                f"{', '.join(listed(by))} of {one.place} its own memory="
            )
    shares = {} if memory is None else _shares(memory, [one for one in given if one.memory is None])
    frame = stream
    for one in given:
        budget = shares.get(one.place) if one.memory is None else one.memory
        settings = one.settings if budget is None else {**one.settings, "memory": budget}
        frame = joined(plan_join(frame, one.relation, **settings))
    return frame


def _shares(memory: int | float | str, dimensions: Sequence[Dimension]) -> dict[Place, int]:
    """Return the bytes for each dimension with a relation.

    Dimensions with the same relation share one copy of it if it is held whole. Otherwise each has a cache of its own,
    in an equal part of the relation's bytes.
    """
    uses = Counter(one.place for one in dimensions)
    needs = {place: need_of(place) for place in uses}
    total = parse_bytes(memory, of=sum(need.nbytes for need in needs.values()))
    small = {place: need.whole + RESULT_ROOM for place, need in needs.items() if need.small and is_share(memory)}
    alone = {one.place for one in dimensions if not one.shares_image(needs[one.place])}
    rest = [
        replace(need, whole=need.whole * uses[place]) if place in alone else need
        for place, need in needs.items()
        if place not in small
    ]
    found = split(max(total - sum(small.values()), total // 2, 1) if small else total, rest)
    return small | {
        place: nbytes if nbytes >= needs[place].whole and place not in alone else max(1, nbytes // uses[place])
        for place, nbytes in found.items()
    }
