"""ADAPTIVEJOIN and updates of R in memory: with nothing pending, an update is refused only if no join could hold it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.core.errors import BudgetTooSmallError, UpdateRefusedError, UpdateTooLargeError
from semistream.joins.adaptive.adaptivejoin import AdaptiveJoin
from semistream.relation.relation import Relation

KEYS, ASKED = 1400, 1500
STREAM = pa.record_batch({"k": np.arange(ASKED), "n": np.arange(ASKED), "note": ["n" * (i % 11) for i in range(ASKED)]})
RANGES = pa.record_batch({"low": np.arange(ASKED), "high": np.arange(ASKED)})


def rows(count: int, tag: str, step: int) -> pa.Table:
    texts = [(tag + str(number)) * (number % 9) for number in range(count)]
    return pa.table({"k": np.arange(count) * step, "r": np.arange(count), "t": texts})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("updates") / "r"
    Relation.build(rows(KEYS, "v", 1), place, "k", page_size=8192, shards=3).close()
    return place


def joined(relation: Relation, memory: int, *, ranged: bool = False) -> tuple[AdaptiveJoin, pa.RecordBatch]:
    batch = RANGES if ranged else STREAM
    how: dict[str, Any] = {"on": ["low", "high"], "condition": "between"} if ranged else {"on": "k"}
    join = semistream.create("adaptivejoin", relation, memory=memory, schema=batch.schema, **how)
    assert isinstance(join, AdaptiveJoin)
    list(join.process([batch]))
    assert join.pending == 0
    return join, batch


def expected(updated: int) -> dict[int, str | None]:
    found = {key: ("v" + str(key)) * (key % 9) if key < KEYS else None for key in range(ASKED)}
    return found | {3 * number: ("u" + str(number)) * (number % 9) for number in range(updated) if 3 * number < ASKED}


@pytest.mark.parametrize("ranged", [False, True])
@pytest.mark.parametrize("memory", [165_000, 275_000, 390_000])
def test_with_nothing_pending_an_update_that_a_new_join_could_hold_is_accepted(path, memory, ranged):
    """Every size from larger to smaller: refused with what is lacking, until the first that fits."""
    with Relation.open(path) as relation:
        join, batch = joined(relation, memory, ranged=ranged)
        for count in range(466, 0, -4):
            try:
                relation.apply(rows(count, "u", 3))
                break
            except UpdateTooLargeError:
                with Relation.open(path) as other:
                    other.apply(rows(count, "u", 3))
                    with pytest.raises(BudgetTooSmallError):
                        joined(other, memory, ranged=ranged)
        join.check()
        assert sum(join.budget.parts().values()) <= memory
        result = pa.Table.from_batches(join.process([batch]))
        join.check()
        assert dict(zip(result[0].to_pylist(), result["t"].to_pylist(), strict=True)) == expected(count)
        assert join.budget.peak <= memory


def test_tuples_that_wait_are_named_only_if_draining_helps(path):
    with Relation.open(path) as relation:
        join, _ = joined(relation, 275_000)
        join.offer(STREAM.slice(0, 100))
        with pytest.raises(UpdateRefusedError, match="holds 100 tuples") as refusal:
            relation.apply(rows(460, "u", 3))
        assert not isinstance(refusal.value, UpdateTooLargeError)
        assert sum(batch.num_rows for batch in join.drain()) == 100
        relation.apply(rows(460, "u", 3))
        with pytest.raises(UpdateTooLargeError, match=r"give the join .* B, or write the update"):
            relation.apply(rows(4000, "x" * 40, 3))


def test_memory_that_was_taken_again_for_an_update_that_others_refuse_is_given_back(path):
    class Stubborn:
        def prepare_update(self, patch: object) -> Any:
            raise UpdateRefusedError("no")

    with Relation.open(path) as relation:
        join, _ = joined(relation, 275_000)
        before, stubborn = join.budget.parts(), Stubborn()
        relation.subscribe(stubborn)
        for count in range(466, 300, -5):
            with pytest.raises(UpdateRefusedError):
                relation.apply(rows(count, "u", 3))
            join.check()
            assert join.budget.parts()["updates of R"] == 0
        assert join.budget.parts().keys() == before.keys()
        result = pa.Table.from_batches(join.process([STREAM]))
        assert dict(zip(result["k"].to_pylist(), result["t"].to_pylist(), strict=True)) == expected(0)
