"""``semistream.enrich``: join a stream with all of its dimensions in one call, in one pass if possible."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from pyspark.sql import DataFrame, Observation

from semistream.core.arguments import listed
from semistream.core.errors import UnsupportedJoinError
from semistream.joins import How
from semistream.joins.interface.conditions import ConditionName
from semistream.relation.relation import Relation
from semistream.relation.storage.secondary_index import Columns
from semistream.relation.stores.store_path import Place, place_of
from semistream.spark.joining.join_plan import ALGORITHM, plan_join
from semistream.spark.joining.missing import After, OnMissing
from semistream.spark.joining.star.star_budget import Use, shares
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

    @property
    def use(self) -> Use:
        """How this dimension uses its relation."""
        given = self.settings
        return Use.of(
            self.place, as_of=given.get("as_of"), condition=given.get("condition", "equal"),
            on_missing=given.get("on_missing"), algorithm=given.get("algorithm"),
            cached=given.get("hold") is not False and bool(given.get("warm", True))
            and given.keys() <= _PARAMETERS,  # others are options of the algorithm
        )  # fmt: skip


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
    parts = {} if memory is None else shares(memory, [one.use for one in given if one.memory is None])
    frame = stream
    for one in given:
        budget = parts.get(one.place) if one.memory is None else one.memory
        settings = one.settings if budget is None else {**one.settings, "memory": budget}
        frame = joined(plan_join(frame, one.relation, **settings))
    return frame
