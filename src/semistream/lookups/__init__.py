"""Look-ups of keys in a relation, through a cache of its rows: `Relation.lookup` and `Relation.lookups`."""

from __future__ import annotations

from semistream.lookups.lookups import Lookups

__all__ = ["Lookups"]
