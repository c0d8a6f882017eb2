"""``columns=``: only those of R's columns that are asked for are decoded and given."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.core.errors import KeyColumnError
from semistream.joins import algorithms, find
from semistream.relation.relation import Relation

ROWS = 600


@pytest.fixture(scope="module", params=["number", "text"])
def relation(request, tmp_path_factory):
    ids = np.arange(ROWS)
    table = pa.table({
        "id": ids if request.param == "number" else [f"k{i}" for i in ids],
        "name": [None if i % 5 == 0 else "n" * (i % 7) for i in ids],
        "flag": ids % 3 == 0,
        "tags": [[int(i)] * (i % 4) if i % 6 else None for i in ids],
        "price": ids / 8,
    })  # fmt: skip
    with Relation.build(table, tmp_path_factory.mktemp("columns") / "r", key="id", page_size=1024) as relation:
        yield relation


def joined(algorithm: str, relation: Relation, **options) -> pa.Table:
    keys = np.random.default_rng(3).integers(0, ROWS + 100, 400)
    exact = relation.key.exact
    batch = pa.record_batch({"id": keys if exact else [f"k{key}" for key in keys], "at": np.arange(keys.size)})
    join = semistream.create(algorithm, relation, on="id", memory=300_000, **options)
    results = list(join.process([batch]))
    return pa.Table.from_batches(results, schema=join.output_schema).sort_by("at")


@pytest.mark.parametrize("algorithm", algorithms())
def test_some_columns_are_those_of_all(relation, algorithm):
    everything = joined(algorithm, relation)
    for columns in (["price"], ["tags", "name"], ["flag", "price", "name", "tags"], []):
        some = joined(algorithm, relation, columns=columns)
        assert some.schema.names == ["id", "at", *columns]
        assert some.to_pydict() == everything.select(some.schema.names).to_pydict()


@pytest.mark.parametrize("algorithm", algorithms())
def test_a_prefix_is_put_before_all_of_rs_columns(relation, algorithm):
    plain = joined(algorithm, relation, columns=["price", "flag"])
    named = joined(algorithm, relation, columns=["price", "flag"], prefix="ship_")
    assert named.schema.names == ["id", "at", "ship_price", "ship_flag"]
    assert [column.to_pylist() for column in named.columns] == [column.to_pylist() for column in plain.columns]


def test_only_names_that_clash_get_the_suffix(relation):
    stream = pa.schema({"id": relation.schema.field("id").type, "of_price": pa.int64(), "flag": pa.bool_()})
    settings = {"on": "id", "memory": "1MB", "columns": ["price", "flag"]}
    join = semistream.create("adaptivejoin", relation, schema=stream, prefix="of_", suffix="_r", **settings)
    assert join.output_schema.names == [*stream.names, "of_price_r", "of_flag"]
    with pytest.raises(
        KeyColumnError,
        match=r"'price' would be called 'of_price' in .*column 'of_price'; .* prefix other than 'of_', or .* ''",
    ):
        semistream.create("adaptivejoin", relation, schema=stream, prefix="of_", suffix="", **settings)


@pytest.mark.parametrize("columns", [["nowhere"], ["price", "price"], "price", ["id"]])
def test_columns_that_r_does_not_add_are_refused(relation, columns):
    with pytest.raises(KeyColumnError, match="each once"):
        semistream.create("adaptivejoin", relation, on="id", memory="100%", columns=columns)


@pytest.mark.parametrize("algorithm", ["auto", *algorithms()])
def test_names_may_come_from_iterators(relation, algorithm):
    keys = [3, 5] if relation.key.exact else ["k3", "k5"]
    join = semistream.create(
        algorithm, relation, on=iter(["id"]), memory=300_000, columns=(name for name in ["price", "flag"])
    )
    result = pa.Table.from_batches(join.process([pa.record_batch({"id": keys})])).sort_by("price")
    assert result.to_pydict() == {"id": keys, "price": [3 / 8, 5 / 8], "flag": [True, False]}


def test_wrong_names_from_an_iterator_are_shown(relation):
    with pytest.raises(KeyColumnError, match=r"columns=\['nowhere', 'price'\]"):
        semistream.create("adaptivejoin", relation, on="id", memory="100%", columns=iter(["nowhere", "price"]))


@pytest.mark.parametrize("algorithm", [name for name in algorithms() if "between" in find(name).conditions])
@pytest.mark.parametrize("how", ["left", "inner"])
def test_ranges_of_a_relation_of_nothing_but_its_key(tmp_path, algorithm, how):
    with Relation.build(pa.table({"id": np.arange(0, 200, 2)}), tmp_path / "r", key="id", page_size=512) as bare:
        batch = pa.record_batch({"low": [5, 7, None], "high": [9, 7, 3]})
        join = semistream.create(
            algorithm, bare, on=["low", "high"], condition="between", how=how, memory=300_000, schema=batch.schema
        )
        result = pa.Table.from_batches(join.process([batch]), schema=join.output_schema)
    assert sorted(result["id"].drop_null().to_pylist()) == [6, 8]
    assert result["id"].null_count == (2 if how == "left" else 0)
