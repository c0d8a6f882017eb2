"""Joins as of a time while R changes, and with a cache in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream
from joins.as_of_cases import answers, as_lists, facts, history
from semistream import Relation
from semistream.core.errors import KeyTypeError, RelationBuildError, UnsupportedJoinError
from semistream.structures.array_source import in_memory

KIND = pa.timestamp("us")


@pytest.mark.parametrize("algorithm", ["adaptivejoin", "oracle", "inlj"])
def test_waiting_tuples_see_r_after_a_change(tmp_path: Path, algorithm: str) -> None:
    random = np.random.default_rng(2)
    rows = history(random, 60, 10, KIND)
    with Relation.build(rows, tmp_path / "r", "id", page_size=512, valid_from="since", valid_to="until") as relation:
        batch = facts(random, 600, 60, 600, KIND)
        options = {"wait": 1e6} if algorithm == "adaptivejoin" else {}
        join = semistream.create(
            algorithm, relation, on="product", as_of="at", memory="4MB", schema=batch.schema, **options
        )
        before = pa.Table.from_batches(join.process([batch]), join.output_schema)  # versions are cached from here on
        assert as_lists(before) == as_lists(answers(rows, batch, {"product": "id"}))
        for turn in range(3):
            waiting = batch.slice(0, join.offer(batch))
            assert waiting.num_rows > 50
            changed = history(np.random.default_rng(10 + turn), 40, 12, KIND)
            relation.upsert(changed)
            join.check()
            found = pa.Table.from_batches(join.drain(), join.output_schema)
            join.check()
            kept = rows.filter(pa.compute.invert(pa.compute.is_in(rows["id"], changed["id"])))
            rows = pa.concat_tables([kept, changed])
            assert as_lists(found) == as_lists(answers(rows, waiting, {"product": "id"}))


def test_a_change_at_a_time_leaves_earlier_facts_alone(tmp_path: Path) -> None:
    rows = pa.table(
        {"id": [1, 2], "since": pa.array([0, 0], KIND), "until": pa.array([None, None], KIND), "price": [10, 20]}
    )
    with Relation.build(rows, tmp_path / "r", "id", valid_from="since", valid_to="until") as relation:
        join = semistream.create("adaptivejoin", relation, on="id", as_of="at", columns=["price"], memory="1MB")
        batch = pa.record_batch({"id": [1, 1, 2, 2], "at": pa.array([5, 15, 5, 15], KIND)})
        assert pa.Table.from_batches(join.process([batch]))["price"].to_pylist() == [10, 10, 20, 20]
        relation.upsert(pa.table({"id": [1], "price": [11]}), at=pa.scalar(10, KIND))
        assert pa.Table.from_batches(join.process([batch]))["price"].to_pylist() == [10, 11, 20, 20]
        relation.delete(pa.array([2]), at=pa.scalar(10, KIND))
        assert pa.Table.from_batches(join.process([batch]))["price"].to_pylist() == [10, 11, 20, None]


def test_the_cache_can_be_kept_in_arrays_of_the_caller(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    rows = history(random, 400, 10, KIND)
    kept: dict[str, np.ndarray] = {}

    def source(named: str) -> object:
        def arrays(name: str, count: int, dtype: object) -> np.ndarray:
            found = kept.setdefault(f"{named} {name}", in_memory(name, count, dtype))
            assert found.size == count
            return found

        return arrays

    with Relation.build(rows, tmp_path / "r", "id", page_size=512, valid_from="since", valid_to="until") as relation:
        batch = facts(random, 3000, 400, 600, KIND)
        pages = []
        for _ in range(3):
            join = semistream.create(
                "adaptivejoin", relation, on="product", as_of="at", memory="1MB", arrays=source, schema=batch.schema
            )
            found = pa.Table.from_batches(join.process([batch]), join.output_schema)
            assert as_lists(found) == as_lists(answers(rows, batch, {"product": "id"}))
            pages.append(join.stats.pages_read)
            join.check()
            relation.unsubscribe(join)
        assert pages[0] > 20
        assert pages[1:] == [0, 0], "what the earlier join has read was not used"


def test_what_is_refused(tmp_path: Path) -> None:
    plain = Relation.build(pa.table({"id": [1]}), tmp_path / "plain", "id")
    rows = pa.table({"id": [1], "since": pa.array([0], KIND)})
    relation = Relation.build(rows, tmp_path / "r", "id", valid_from="since")
    with pytest.raises(
        UnsupportedJoinError, match="needs a history, but the relation has no times; build it with valid_from="
    ):
        semistream.create("adaptivejoin", plain, on="id", as_of="at")
    with pytest.raises(
        UnsupportedJoinError, match="hybridjoin does not support condition 'as_of'; use 'adaptivejoin', 'inlj' or"
    ):
        semistream.create("hybridjoin", relation, on="id", as_of="at")
    with pytest.raises(UnsupportedJoinError, match="does not fit condition 'between'"):
        semistream.create("adaptivejoin", relation, on=("id", "id"), condition="between", as_of="at")
    with pytest.raises(UnsupportedJoinError, match="name the stream's column of times with as_of="):
        semistream.create("adaptivejoin", relation, on="id", condition="as_of")
    stream = pa.schema({"id": pa.int64(), "at": pa.timestamp("us", "UTC")})
    with pytest.raises(
        KeyTypeError, match=r"column 'at', named by as_of, is timestamp.*cast the stream's column to timestamp"
    ):
        semistream.create("adaptivejoin", relation, on="id", as_of="at", schema=stream)
    for options, message in (
        ({"valid_from": "sinc"}, "did you mean 'since'"),
        ({"valid_from": "id"}, "part of the key"),
        ({"valid_from": "since", "valid_to": "name"}, "'name' is string, but a time must be"),
        ({"valid_from": "since", "valid_to": "day"}, "both have the same type"),
        ({"valid_from": "since", "clustered": False}, "clustered=True"),
        ({"valid_from": "since", "unique": True}, "leave unique out"),
        ({"valid_from": "since", "indexes": ["name"]}, "leave indexes out"),
        ({"valid_to": "since"}, "needs valid_from="),
    ):
        more = rows.append_column("name", [["x"]]).append_column("day", [pa.array([0], pa.date32())])
        with pytest.raises(RelationBuildError, match=message):
            Relation.build(more, tmp_path / "x", "id", **options)


def test_columns_of_auto_cdc_are_recognised(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 1], "__START_AT": [0, 5], "__END_AT": pa.array([5, None], pa.int64()), "price": [1, 2]})
    with Relation.build(rows, tmp_path / "r", "id") as relation:
        assert relation.stored.time_columns == ("__START_AT", "__END_AT")
        join = semistream.create("inlj", relation, on="id", as_of="at", columns=["price"])
        assert pa.Table.from_batches(join.process([pa.record_batch({"id": [1, 1], "at": [4, 5]})]))[
            "price"
        ].to_pylist() == [1, 2]
