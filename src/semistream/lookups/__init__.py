"""Look-ups of keys in a relation, through a cache of its rows: `Relation.lookup` and `Relation.lookups`."""

from __future__ import annotations

from semistream.lookups.lookups import Lookups
from semistream.lookups.with_rows import with_rows

__all__ = ["Lookups", "with_rows"]
