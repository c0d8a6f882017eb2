"""Models split small budgets as the joins do: both use the same functions."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from semistream.costs import Setting, costs_of
from semistream.joins import find
from semistream.relation.relation import Relation
from semistream.relation.synthetic import synthetic_relation

STREAM = pa.schema({"id": pa.int64(), "amount": pa.float64()})


@pytest.mark.parametrize("algorithm", ["cachejoin", "cmeshjoin", "front+inlj", "p_cachejoin", "op_cachejoin"])
@pytest.mark.parametrize("more", [0, 3000, 6000, 300_000])
def test_small_budgets_of_front_stages(algorithm: str, more: int) -> None:
    relation = synthetic_relation(8_000_000)
    memory = find(algorithm).minimum_memory(relation, STREAM, on="id") + more
    join = find(algorithm)(relation, on="id", memory=memory, schema=STREAM)
    expected = {name: size for name, size in join.budget.parts().items() if size}
    parts = costs_of(algorithm).memory(Setting.of(relation, STREAM), memory)
    for name in ("results ahead", "intermediate buffer", "stream buffer", "matches", "results"):
        assert parts.get(name) == expected.get(name), name
    for name in ("front stage", "join behind"):
        assert parts[name] == pytest.approx(expected[name], abs=200), name


@pytest.mark.parametrize("algorithm", ["x_hybridjoin", "partitioned_join"])
def test_rows_that_vary_in_length(algorithm: str, tmp_path: Path) -> None:
    table = pa.table({"id": range(20_000), "note": ["x" * (key % 90) for key in range(20_000)]})
    relation = Relation.build(table, tmp_path / "r", key="id", page_size=1024)
    join = find(algorithm)(relation, on="id", memory=300_000, schema=STREAM)
    expected = {name: size for name, size in join.budget.parts().items() if size}
    parts = costs_of(algorithm).memory(Setting.of(relation, STREAM), 300_000)
    assert parts.keys() == expected.keys()
    for name, size in expected.items():
        assert parts[name] == pytest.approx(size, abs=200), name
