"""How the memory of a pipeline file is divided among its joins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import semistream
from semistream.spark.joining.star.star_budget import Use, need_of, shares
from semistream.spark.pipeline.document import Document
from semistream.spark.pipeline.plan import JoinPlan
from semistream.spark.pipeline.reading import read_plan

HEAD = """
checkpoint = "checkpoint"
memory = "3MB"

[source]
format = "rate"

[sink]
format = "parquet"
path = "facts"
"""


@pytest.fixture(scope="module")
def relations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("relations")
    rng = np.random.default_rng(1)
    for name, rows, width in (("days", 400, 20), ("stores", 900, 30), ("products", 60_000, 80), ("users", 25_000, 80)):
        data = pa.table({"id": np.arange(rows), "text": pa.array([rng.bytes(width) for _ in range(rows)])})
        semistream.Relation.build(data, place / name, key="id").close()
    return place


def budgets(relations: Path, *joins: str) -> list[tuple[str, int]]:
    """Return the relation and the memory of each join of a file."""
    parts = [
        f'[[join]]\nname = "j{number}"\nrelation = "{relations / join}"\non = "value"\n'
        for number, join in enumerate(joins)
    ]
    document = Document(Path("p.toml"), HEAD + "\n".join(parts), {})
    plan = read_plan(document)
    assert not document.problems, document.problems
    return [(join.relation.name, memory(join)) for join in plan.joins]


def memory(join: JoinPlan) -> int:
    assert isinstance(join.memory, int)
    return join.memory


def test_small_relations_are_held_once_and_large_ones_share_the_rest(relations: Path) -> None:
    found = budgets(relations, "days", "days", "stores", "products", "users")
    days, stores = (need_of(relations / name).whole for name in ("days", "stores"))
    assert found[:3] == [("days", days), ("days", days), ("stores", stores)]
    large = dict(found[3:])
    free = 3_000_000 - days - stores
    assert 0.9 * free < sum(large.values()) <= free, "the relation that is joined twice counts once"
    uses = [Use(relations / name) for name in ("days", "days", "stores", "products", "users")]
    expected = shares(3_000_000, uses)
    assert found == [(use.place.name, expected[use.place]) for use in uses], "as in a star"
