"""R's columns change: what is possible, what is refused, and that every version shows the right rows."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import semistream
from semistream.core.errors import NotARelationError, RelationBuildError, SemistreamError
from semistream.relation.changes.update_agreement import Listener
from semistream.relation.damage.repair import RepairError, repair
from semistream.relation.damage.verify import find_faults
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.manifest import Manifest
from semistream.relation.version_changes import changed_keys
from semistream.relation.versions.leases import Writer

ROWS = pa.table({"id": range(40), "name": [f"name {at}" for at in range(40)], "price": pa.array(range(40), pa.int32())})
DAY = datetime.date(2026, 1, 2)
SMALL: dict[str, Any] = {"page_size": 512, "shards": 2}


@pytest.fixture
def products(tmp_path: Path) -> Relation:
    return Relation.build(ROWS, tmp_path / "r", "id", **SMALL)


def rows_of(relation: Relation) -> list[dict[str, Any]]:
    return sorted(relation.to_table().to_pylist(), key=lambda row: row["id"])


def test_a_change_of_columns_writes_no_page(products: Relation, tmp_path: Path) -> None:
    before = {file.name for file in (tmp_path / "r").iterdir()}
    assert products.evolve(drop=["price"], rename={"name": "title"}, add={"stock": pa.int8()}) == 2
    assert {file.name for file in (tmp_path / "r").iterdir()} - before == {"manifest-00000002.json"}
    assert [version.operation for version in products.history()] == ["build", "evolve"]
    assert products.evolve(rename={"title": "stock", "stock": "title"}) == 3  # names are those before the change
    assert rows_of(products)[7] == {"id": 7, "stock": "name 7", "title": None}


def test_readers_keep_their_version(products: Relation, tmp_path: Path) -> None:
    with Relation.open(tmp_path / "r") as reader:
        products.evolve(drop=["name"])
        products.upsert(pa.table({"id": [1], "price": [99]}))
        assert reader.to_table().sort_by("id").equals(ROWS)
        assert reader.refresh() == 3
        assert rows_of(reader)[1] == {"id": 1, "price": 99}
    with Relation.open(tmp_path / "r", version=1) as first:
        assert first.to_table().sort_by("id").equals(ROWS)


def test_one_name_may_be_dropped(products: Relation) -> None:
    products.evolve(drop="price")
    assert "price" not in products.schema.names


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "no change"),
        ({"drop": ["id"]}, "'id': it is a key column"),
        ({"rename": {"id": "key"}}, "it is a key column"),
        ({"widen": {"id": pa.decimal128(20)}}, "it is a key column"),
        ({"drop": ["colour"]}, "cannot drop 'colour': R has the columns id, name, price"),
        ({"widen": {"price": pa.int16()}}, "of type int32 cannot become int16"),
        ({"widen": {"price": pa.float32()}}, "cannot become float"),
        ({"widen": {"name": pa.int64()}}, "of type string cannot become int64"),
        ({"add": {"name": pa.int64()}}, "'name' occurs 2 times"),
        ({"rename": {"name": "price"}}, "'price' occurs 2 times"),
        ({"drop": ["name"], "rename": {"name": "title"}}, "both drop and rename"),
        ({"add": {"a": pa.int8()}, "defaults": {"a": 300}}, "300 cannot be the default of 'a'"),
        ({"add": {"a": pa.int8()}, "defaults": {"price": 3}}, "'price' is not"),
        ({"add": {"a": pa.list_(pa.int8())}, "defaults": {"a": [1]}}, "a nested type has no default"),
        ({"add": {"a": pa.string()}, "defaults": {"a": "long " * 100}}, "may need"),
        ({"add": {f"a{at}": pa.int64() for at in range(60)}}, "a page of 512 B holds rows of at most"),
    ],
)
def test_what_is_refused(products: Relation, changes: dict[str, Any], why: str) -> None:
    with pytest.raises((RelationBuildError, ValueError), match=why):
        products.evolve(**changes)
    assert manifests.versions(products.place) == [1]


def test_types_that_no_manifest_can_hold(products: Relation, tmp_path: Path) -> None:
    """Arrow writes the schema of a dictionary of UUIDs, but cannot read it."""
    kind = pa.dictionary(pa.int32(), pa.uuid())
    rows = ROWS.append_column("code", pa.nulls(40, kind))
    for change in (
        lambda: products.evolve(add={"code": kind}),
        lambda: products.upsert(rows, evolve=True),
        lambda: Relation.build(rows, tmp_path / "r", "id", overwrite=True),
    ):
        with pytest.raises(RelationBuildError, match=r"column 'code' has the type dictionary.*cast the column"):
            change()
    with Relation.open(tmp_path / "r") as relation:
        assert relation.version == 1
        assert rows_of(relation) == ROWS.to_pylist()


def test_joins_must_not_be_attached(products: Relation) -> None:
    class Join(Listener):
        def prepare_update(self, patch: object) -> Any:
            raise AssertionError

    join = Join()
    products.subscribe(join)
    with pytest.raises(SemistreamError, match="1 joins hold rows"):
        products.evolve(drop=["price"])
    with pytest.raises(SemistreamError, match="1 joins hold rows"):
        products.upsert(ROWS, evolve=True)
    assert manifests.versions(products.place) == [1]


def test_updates_with_other_columns(products: Relation) -> None:
    more = pa.table(
        {"id": [1, 50], "name": ["a", "b"], "price": pa.array([2**40, 1], pa.int64()), "colour": ["red", None]}
    )
    with pytest.raises(RelationBuildError, match=r"column 'colour'.*evolve=True"):
        products.upsert(more)
    with pytest.raises(RelationBuildError, match="lacks R's column 'price'"):
        products.upsert(more.drop_columns(["price"]), evolve=True)
    assert products.upsert(more, evolve=True) == 2
    assert products.schema.field("price").type == pa.int64()
    assert [row for row in rows_of(products) if row["id"] in (1, 2, 50)] == [
        {"id": 1, "name": "a", "price": 2**40, "colour": "red"},
        {"id": 2, "name": "name 2", "price": 2, "colour": None},
        {"id": 50, "name": "b", "price": 1, "colour": None},
    ]
    assert products.upsert(more, evolve=True) == 3  # nothing to change, and not another layout
    assert products.manifest.evolution is not None
    assert sorted(products.manifest.evolution.layouts) == [0, 1]
    products.delete(pa.array([50]))
    products.compact()
    assert not list(find_faults(products))


def test_a_default_is_widened_with_its_column(products: Relation) -> None:
    """Whichever version is read, in the columns of whichever."""
    words = pa.dictionary(pa.int8(), pa.string())
    products.evolve(add={"a": words, "b": pa.int8(), "c": pa.date32()}, defaults={"a": "red", "b": -1, "c": DAY})
    layouts = [products.stored.row_layouts]
    products.evolve(widen={"a": pa.string_view(), "b": pa.float64(), "c": pa.timestamp("s")})
    layouts.append(products.stored.row_layouts)
    for version in (1, 2, 3):
        for shown, day in zip(layouts, (DAY, datetime.datetime(2026, 1, 2)), strict=True):
            with Relation.open(products.place, version=version, shown_as=shown) as relation:
                assert relation.to_table().select(["a", "b", "c"]).slice(3, 1).to_pylist() == [
                    {"a": "red", "b": -1.0, "c": day}
                ]


def test_lookups_follow(products: Relation) -> None:
    assert products.lookup([3])["name"].to_pylist() == ["name 3"]
    products.evolve(rename={"name": "title"}, add={"stock": pa.int16()}, defaults={"stock": 5})
    assert products.lookup([3, 99]).to_pydict() == {"title": ["name 3", None], "price": [3, None], "stock": [5, None]}


def test_earlier_releases_refuse_it(products: Relation, tmp_path: Path) -> None:
    first = json.loads((tmp_path / "r" / "manifest-00000001.json").read_text())
    products.evolve(drop=["price"])
    products.upsert(pa.table({"id": [1], "name": ["x"]}))
    evolved = json.loads((tmp_path / "r" / "manifest-00000003.json").read_text())
    assert first["format_version"] == 2
    assert "row_layouts" not in first
    assert all("layouts" not in shard for shard in first["shards"])
    assert evolved["format_version"] == 5
    assert any(shard.get("layouts") == [0, 1] for shard in evolved["shards"])


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda one: one["row_layouts"].update(lineage=""), "no lineage"),
        (lambda one: one["shards"][0].update(layouts=[7]), "layouts"),
        (lambda one: one["row_layouts"]["layouts"].pop(), "its schema is not that of row layout"),
        (lambda one: one["row_layouts"].update(next_column=1), "the next is 1"),
        (lambda one: one.pop("row_layouts"), "KeyError"),
    ],
)
def test_damaged_row_layouts(products: Relation, edit: Callable[[Any], None], why: str) -> None:
    products.evolve(rename={"name": "title"})
    document = json.loads(products.stored.to_json())
    del document["checksum"]
    edit(document)
    text = manifests.manifest_check.sealed(json.dumps(document, indent=1))
    with pytest.raises(NotARelationError, match=why):
        Manifest.from_json(text, "it")


def test_a_column_that_was_added_again_is_another_column(products: Relation, tmp_path: Path) -> None:
    first = products.stored.row_layouts
    products.evolve(drop=["price"])
    products.evolve(add={"price": pa.int32()})
    assert products.schema.equals(ROWS.schema)
    assert products.to_table()["price"].null_count == 40
    assert changed_keys(tmp_path / "r", 1, 3) is None, "a warm cache would keep the old prices"
    with Relation.open(tmp_path / "r", shown_as=first) as shown:
        assert shown.schema.names == ["id", "name"]


def test_rows_as_an_earlier_or_later_version_shows_them(products: Relation, tmp_path: Path) -> None:
    first = products.stored.row_layouts
    products.evolve(
        rename={"name": "title"}, widen={"price": pa.int64()}, add={"stock": pa.int32()}, defaults={"stock": 9}
    )
    products.upsert(pa.table({"id": [1], "title": ["new"], "price": [7], "stock": [1]}))
    later = products.stored.row_layouts
    products.compact()
    with Relation.open(tmp_path / "r", shown_as=first) as shown:
        expected = ROWS.to_pylist()
        expected[1] = {"id": 1, "name": "new", "price": 7}
        assert rows_of(shown) == expected
        assert shown.schema.equals(ROWS.schema)
        with pytest.raises(SemistreamError, match="without shown_as"):
            shown.upsert(ROWS)
    with Relation.open(tmp_path / "r", version=1, shown_as=later) as shown:
        assert rows_of(shown)[2] == {"id": 2, "title": "name 2", "price": 2, "stock": 9}
    Relation.build(ROWS.select(["id", "price"]), tmp_path / "r", "id", overwrite=True)
    with Relation.open(tmp_path / "r", shown_as=first) as shown:
        assert shown.schema.names == ["id", "price"]  # of another build: nothing is known about these columns


def test_damage_is_found_and_repaired(products: Relation, tmp_path: Path) -> None:
    """A page in the present layout is packed again from the data; one in an earlier layout needs a copy."""
    products.evolve(rename={"name": "title"}, add={"stock": pa.int32()})
    products.upsert(
        pa.table(
            {
                "id": [1, 2],
                "title": ["a", "b"],
                "price": pa.array([1, 2], pa.int32()),
                "stock": pa.array([3, 4], pa.int32()),
            }
        )
    )
    whole = products.to_table()
    products.close()
    shutil.copytree(tmp_path / "r", tmp_path / "copy")

    def damage(name: str) -> None:
        with (tmp_path / "r" / name).open("r+b") as file:
            file.seek(-512 + 100, 2)  # in the last page, which the update did not replace
            file.write(b"damage")

    manifest = manifests.load(tmp_path / "r")
    shard = next(shard for shard in manifest.shards if shard.deltas)
    damage(shard.deltas[0][0])
    assert [one.proof for one in repair(tmp_path / "r", whole.to_reader)] == ["checksum"]
    damage(shard.pages_file)
    with Relation.open(tmp_path / "r") as relation:
        assert len(list(find_faults(relation))) == 1
    with pytest.raises(RepairError, match=r"was written before columns changed.*copy"):
        repair(tmp_path / "r", whole.to_reader)
    assert [one.proof for one in repair(tmp_path / "r", copy=tmp_path / "copy")] == ["copy"]
    with Relation.open(tmp_path / "r") as relation:
        assert relation.to_table().equals(whole)


def test_secondary_indexes_stay_in_step(tmp_path: Path) -> None:
    path = tmp_path / "r"
    relation = Relation.build(ROWS, path, "id", indexes=["name"], **SMALL)
    with pytest.raises(RelationBuildError, match=r"columns name have an index, .* drop the index first"):
        relation.evolve(rename={"name": "title"})
    relation.evolve(widen={"price": pa.int64()}, add={"stock": pa.int8()}, defaults={"stock": 3})
    relation.upsert(pa.table({"id": [1], "name": ["new"], "price": [2**40], "stock": pa.array([5], pa.int8())}))
    relation.upsert(pa.table({"id": [2], "name": ["two"], "price": [7], "stock": [9], "more": ["x"]}), evolve=True)
    relation.add_index("price")
    for column in ("name", "price"):
        with Relation.open(path, by=column) as index:
            assert rows_of(index) == rows_of(relation)
            assert index.stored.row_layouts.number == 2
    relation.compact()
    with Relation.open(path, by="name") as index:
        assert rows_of(index) == rows_of(relation)
    assert rows_of(relation)[2] == {"id": 2, "name": "two", "price": 7, "stock": 9, "more": "x"}


def test_an_index_on_another_column_of_the_same_name(tmp_path: Path) -> None:
    """A query that looks rows up by ``name`` must not find them by what is called so later."""
    path = tmp_path / "r"
    rows = pa.table({"id": range(9), "name": range(9), "price": range(9, 18)})
    with Relation.build(rows, path, "id", indexes=["name"], **SMALL) as relation:
        planned = relation.stored.row_layouts
        relation.drop_index("name")
        relation.evolve(rename={"name": "price", "price": "name"})
        relation.add_index("name")
    with Relation.open(path, shown_as=planned) as shown:
        assert rows_of(shown) == rows.to_pylist()
    with pytest.raises(SemistreamError, match="'name', by which rows are found, is another column of version 4"):
        Relation.open(path, shown_as=planned, by="name")


def test_a_history_keeps_its_times(tmp_path: Path) -> None:
    rows = {"id": [1, 1, 2], "since": [1, 5, 3], "until": [5, None, None], "name": ["x", "y", "z"]}
    with Relation.build(pa.table(rows), tmp_path / "h", "id", valid_from="since", valid_to="until") as history:
        for change in ({"drop": ["until"]}, {"rename": {"since": "from"}}, {"widen": {"until": pa.float64()}}):
            with pytest.raises(RelationBuildError, match="it says when rows of this history are valid"):
                history.evolve(**change)
        history.evolve(rename={"name": "title"}, add={"stock": pa.int64()}, defaults={"stock": 7})
        history.upsert(pa.table({"id": [1, 3], "title": ["new", "other"], "stock": [8, 9]}), at=9)
        history.upsert(pa.table({"id": [2], "title": ["z2"], "stock": [1], "more": ["x"]}), at=20, evolve=True)
        history.compact()
        expected = [(1, 1, 5, "x", 7, None), (1, 5, 9, "y", 7, None), (1, 9, None, "new", 8, None),
                    (2, 3, 20, "z", 7, None), (2, 20, None, "z2", 1, "x"), (3, 9, None, "other", 9, None)]  # fmt: skip
        assert sorted((tuple(row.values()) for row in history.to_table().to_pylist()), key=lambda row: row[:2]) == (
            expected
        )
        assert history.times is not None
    stream = pa.record_batch({"id": [1, 1, 2, 3], "at": [4, 9, 19, 8]})
    with Relation.open(tmp_path / "h") as history, semistream.create(
        "adaptivejoin", history, on="id", as_of="at"
    ) as join:  # fmt: skip
        found = pa.Table.from_batches(join.process([stream])).to_pylist()
    assert sorted((row["id"], row["at"], row["title"]) for row in found) == [
        (1, 4, "x"), (1, 9, "new"), (2, 19, "z"), (3, 8, None),
    ]  # fmt: skip


def test_two_writers(products: Relation, tmp_path: Path) -> None:
    """An evolve that is overtaken by an upsert is applied to its version, and the other way round."""
    other = Relation.open(tmp_path / "r")
    other.upsert(pa.table({"id": [100], "name": ["x"], "price": pa.array([1], pa.int32())}))
    assert products.evolve(drop=["price"]) == 3
    assert rows_of(products)[-1] == {"id": 100, "name": "x"}
    with pytest.raises(RelationBuildError, match="has a column 'price'"):
        other.upsert(ROWS)
    with Writer(products.place):
        assert products.evolve(add={"price": pa.int64()}) == 4
