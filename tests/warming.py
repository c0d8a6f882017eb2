"""Loads or compiles the kernels of all joins, so that child processes of this one need not."""

from __future__ import annotations

import tempfile

import numpy as np
import pyarrow as pa

import semistream
import semistream.joins
from semistream.relation.relation import Relation

__all__ = ["warm_up"]


def warm_up() -> None:
    """Run every join over a few rows of fixed and of varying length, clustered and not; update and compact them."""
    rows = 60
    numbers = pa.table({"id": np.arange(rows) // 2, "n": np.arange(rows)})
    names = pa.table({"id": [f"key {n // 2}" for n in range(rows)], "name": ["name"] * rows})
    with tempfile.TemporaryDirectory() as folder:
        for at, table in enumerate((numbers, names)):
            for clustered in (False, True):
                path = f"{folder}/{at}{clustered}"
                Relation.build(table, path, "id", page_size=512, shards=2, clustered=clustered).close()
                if clustered:
                    semistream.upsert(path, table.slice(0, 4))
                    semistream.compact(path)
                for algorithm in semistream.joins.algorithms():
                    with Relation.open(path) as relation:
                        options = {"threads": False} if algorithm in ("p_cachejoin", "op_cachejoin") else {}
                        join = semistream.joins.create(
                            algorithm, relation, on="id", how="left", memory="1MB", **options
                        )
                        for _ in range(2):
                            list(join.process(table.to_batches()))
                        if clustered:
                            relation.apply(table.slice(0, 2))
                        list(join.process(table.to_batches()))
                        join.check()
