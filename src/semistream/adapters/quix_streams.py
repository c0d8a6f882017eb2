"""Quix Streams: a look-up for ``StreamingDataFrame.join_lookup``, which asks for one record at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from quixstreams.dataframe.joins.lookups import BaseField, BaseLookup

from semistream.lookups import Lookups

__all__ = ["RelationField", "RelationLookup"]


@dataclasses.dataclass(frozen=True)
class RelationField(BaseField):  # type: ignore[misc]
    """One column of R. ``default`` is for keys that R does not have."""

    column: str
    default: Any = None


class RelationLookup(BaseLookup[RelationField]):  # type: ignore[misc]
    """Adds columns of R to the record.

    Parameters
    ----------
    lookups
        Where to look up; they must stay open as long as the application runs.

    Examples
    --------
    In an application with a topic of sales::

        fields = {"name": RelationField("name"), "price": RelationField("price", default=0.0)}
        sales = sales.join_lookup(RelationLookup(relation.lookups("64MB")), fields, on="product")
    """

    def __init__(self, lookups: Lookups) -> None:
        self._lookups = lookups

    def join(
        self,
        fields: Mapping[str, RelationField],
        on: Any,
        value: dict[str, Any],
        key: Any,
        timestamp: int,
        headers: Any,
    ) -> None:
        """Set each field of ``value`` to the column of the row whose key is ``on``, or to its default."""
        names = list(dict.fromkeys(field.column for field in fields.values()))
        row = self._lookups.get([on], names, found="\0found").to_pylist()[0]
        for name, field in fields.items():
            value[name] = row[field.column] if row["\0found"] else field.default
