"""The least memory: what a join says it needs at least is enough, for an R of any length."""

from __future__ import annotations

import pyarrow as pa
import pytest

import semistream
from semistream.core.errors import BudgetTooSmallError
from semistream.joins import find
from semistream.relation.synthetic import synthetic_relation

pytestmark = pytest.mark.slow

STREAM = pa.schema({"id": pa.int64(), "amount": pa.float64()})
BOUNDED = [algorithm for algorithm in semistream.algorithms() if find(algorithm).bounded]


@pytest.mark.parametrize("algorithm", BOUNDED)
def test_the_least_is_enough(algorithm: str) -> None:
    kind = find(algorithm)
    for rows in (*range(1, 40), *range(40, 100_000, 1901), 1_000_003, 10_000_000):
        relation = synthetic_relation(rows)
        least = kind.minimum_memory(relation, STREAM, on="id")
        for more in (0, 1, 1000, least // 3):
            join = kind(relation, on="id", memory=least + more, schema=STREAM)
            assert join.budget.peak <= join.budget.total
        with pytest.raises(BudgetTooSmallError, match=f"{least:,}"):
            kind(relation, on="id", memory=least - 1, schema=STREAM)


@pytest.mark.parametrize("algorithm", BOUNDED)
def test_what_is_known_before_the_stream_is_refused_before_it(algorithm: str) -> None:
    relation = synthetic_relation(1_000_000)
    with pytest.raises(BudgetTooSmallError, match=rf"memory of 1,000 B is too small for {algorithm.replace('+', '.')}"):
        semistream.create(algorithm, relation, on="id", how="inner", memory=1000)


@pytest.mark.parametrize("algorithm", BOUNDED)
@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.dictionary(pa.int8(), pa.int8())])
def test_the_least_is_enough_also_where_the_stream_is_not_known_yet(algorithm: str, kind: pa.DataType) -> None:
    schema = pa.schema({"id": kind})
    for rows in (100, 20_000, 333_333):
        relation = synthetic_relation(rows)
        least = find(algorithm).minimum_memory(relation, schema, on="id")
        find(algorithm)(relation, on="id", memory=least).bind(schema)
