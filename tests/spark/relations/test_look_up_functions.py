"""The functions of SQL, without Spark around them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark import TaskContext

from semistream.core.errors import UnsupportedJoinError
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.spark import sql_functions


def functions_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the functions of a relation and its indexes by name, as Python functions."""
    found: dict[str, Any] = {}
    session: Any = SimpleNamespace(udf=SimpleNamespace(register=found.__setitem__))
    monkeypatch.setattr(sql_functions, "arrow_function", lambda function, kind: function)
    manifest = manifests.load(path)
    for order in (manifest, *(manifest.in_order_of(index.key, path) for index in manifest.indexes)):
        sql_functions._registered(session, "r", path, order, 1 << 20, None)
    return found


def test_functions_of_a_query_keep_the_columns_that_they_were_registered_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new column under the name of another one is not taken for it, nor is a wider type refused."""
    path, number = tmp_path / "r", pa.int32()
    rows = {"id": [1, 2], "price": pa.array([10, 20], number), "cost": pa.array([7, 8], number), "kind": ["a", "b"]}
    Relation.build(pa.table(rows), path, "id", indexes=["kind"]).close()
    functions = functions_of(path, monkeypatch)
    batches = iter(range(9))

    def looked_up(name: str, key: Any) -> Any:
        told = {"sql.streaming.queryId": "q-1", "streaming.sql.batchId": str(next(batches))}
        monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(getLocalProperty=told.get))
        return next(functions[name](iter([pa.array([key])]))).to_pylist()[0]

    first = {"price": 10, "cost": 7, "kind": "a"}
    assert looked_up("lookup_r", 1) == first
    with Relation.open(path) as relation:
        relation.evolve(rename={"price": "cost", "cost": "price"}, add={"new": number})
        assert looked_up("lookup_r", 1) == first
        before, again = dict(functions), functions_of(path, monkeypatch)
        functions |= again
        assert looked_up("lookup_r", 1) == {"cost": 10, "price": 7, "kind": "a", "new": None}, "registered again"
        functions |= before
        relation.evolve(widen={"cost": pa.int64()})
        assert looked_up("lookup_r", 1) == first
        assert looked_up("lookup_all_r_by_kind", "a") == [{"id": 1, "price": 10, "cost": 7}]
        relation.evolve(drop=["price"])
        with pytest.raises(UnsupportedJoinError, match="has other columns than this query was started with: cost"):
            looked_up("lookup_r", 1)
