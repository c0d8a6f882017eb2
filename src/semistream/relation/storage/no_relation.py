"""Says why there is no relation at a path, and what to do."""

from __future__ import annotations

from semistream.relation.stores.store_path import Place, names_in

__all__ = ["why_not"]


def why_not(path: Place) -> str:
    """Return why there is no relation at ``path``, and what to do."""
    if not path.exists():
        return f"there is no relation at {path}: the path does not exist; build one with Relation.build or spark.build"
    if not path.is_dir():
        return f"{path} is a file; a relation is a directory made by Relation.build or spark.build"
    if any(name.startswith("shard-") for name in names_in(path)):
        return f"{path} holds an unfinished build (shards, but no manifest); build it again"
    return f"{path} is a directory without a manifest, not a relation; build one with Relation.build or spark.build"
