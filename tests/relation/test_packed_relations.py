"""Relations whose columns are packed do everything that plain ones do, with the same rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import semistream
from packed_builds import builds_as_released, packed_builds
from semistream.cli import app
from semistream.core.errors import CorruptPageError, NotARelationError
from semistream.relation.changes.invariants import check_relation
from semistream.relation.damage.repair import repair
from semistream.relation.damage.verify import find_faults
from semistream.relation.evolving import ColumnChanges, evolved
from semistream.relation.pages.encoding_choice import PACKED_FROM
from semistream.relation.pages.stored_rows import row_format
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage import manifest_check
from semistream.relation.storage.manifest import Manifest
from semistream.relation.version_changes import changed_keys
from semistream.spark.joining.held.image import Image, build_image

PAGE = 1024
SALTS = range(4)


def master(rows: int = 600, first: int = 0) -> pa.Table:
    """Return rows with columns of each packed family, and of types that are never packed."""
    numbers = np.arange(first, first + rows)
    return pa.table({
        "id": pa.array(numbers * 3),
        "kind": pa.array([f"kind {number % 5}" for number in numbers]),
        "note": pa.array([None if number % 7 == 0 else f"note of {number} " * (number % 4) for number in numbers]),
        "price": pa.array(numbers * 10 + 100, pa.int32()),
        "sold": pa.array(numbers.astype(np.int32)).cast(pa.date32()),
        "rate": pa.array(numbers / 7),
        "open": pa.array(numbers % 3 == 0),
        "tags": pa.array([[f"t{number % 3}"] * (number % 3) for number in numbers], pa.list_(pa.string())),
    })  # fmt: skip


STRANGE = pa.table({
    "id": [3, 10_001, 10_002], "kind": ["x" * 280, None, ""], "note": ["ä" * 9, "note", None],
    "price": pa.array([-(2**31), 2**31 - 1, None], pa.int32()),
    "sold": pa.array([-(2**31), 2**31 - 1, None], pa.int32()).cast(pa.date32()),
    "rate": [None, -0.0, 1.5], "open": [None, True, False],
    "tags": pa.array([None, [], [None, ""]], pa.list_(pa.string())),
})  # fmt: skip
"""Values that no build has seen."""


def by_id(table: pa.Table) -> pa.Table:
    return table.sort_by("id").combine_chunks()


@pytest.mark.parametrize("salt", SALTS)
@pytest.mark.parametrize(("clustered", "shards"), [(True, 1), (True, 3), (False, 1), (False, 2)])
def test_all_rows_are_as_given(salt: int, clustered: bool, shards: int, tmp_path: Path) -> None:
    data = pa.concat_tables([master(), STRANGE.slice(1)])
    with packed_builds(salt), Relation.build(
        data, tmp_path / "r", "id", page_size=PAGE, clustered=clustered, shards=shards
    ) as relation:  # fmt: skip
        assert relation.packing is not None
        assert {column.number for column in relation.packing.columns} == {1, 2, 3, 4}
        assert by_id(relation.to_table()).equals(by_id(data))
        found = relation.lookup(data["id"])
        assert pa.Table.from_batches([found]).equals(data.drop_columns(["id"]).combine_chunks())
        assert list(find_faults(relation)) == []


@pytest.mark.parametrize("salt", SALTS)
def test_updates_and_compaction_have_the_same_rows_as_a_plain_relation(salt: int, tmp_path: Path) -> None:
    with Relation.build(master(), tmp_path / "plain", "id", page_size=PAGE, encoding="plain") as plain:
        with packed_builds(salt):
            packed = Relation.build(master(), tmp_path / "packed", "id", page_size=PAGE, indexes=["kind"])
        packing = packed.packing
        for relation in (plain, packed):
            relation.upsert(STRANGE)
            relation.delete(pa.array([6, 9, 10_001]))
            relation.upsert(master(50, 590))
        assert packed.packing == packing is not None
        assert by_id(packed.to_table()).equals(by_id(plain.to_table()))
        with packed.by("kind") as index:
            assert index.packing == packing
            rows = by_id(plain.to_table())
            assert by_id(index.to_table()).equals(rows.filter(pa.compute.is_valid(rows["kind"])).combine_chunks())
        assert (
            changed_keys(packed.path, 1, packed.version).tolist() == changed_keys(plain.path, 1, plain.version).tolist()
        )
        version = packed.version
        with packed_builds(salt + 1):
            packed.compact()
        assert packed.packing not in (packing, None)
        assert by_id(packed.to_table()).equals(by_id(plain.to_table()))
        assert changed_keys(packed.path, version, packed.version) is None  # equal rows, in other bytes
        packed.compact()
        assert packed.packing is None  # chosen again, and there are few rows
        assert by_id(packed.to_table()).equals(by_id(plain.to_table()))
        packed.close()


@pytest.mark.parametrize("salt", SALTS)
def test_columns_change_without_writing_pages(salt: int, tmp_path: Path) -> None:
    data = master()
    with packed_builds(salt), Relation.build(data, tmp_path / "r", "id", page_size=PAGE) as relation:
        relation.upsert(STRANGE)
        rows, first = by_id(relation.to_table()), relation.manifest.row_layouts
        changes = {
            "add": {"size": pa.int16(), "colour": pa.string()},
            "drop": ["tags", "note"],
            "rename": {"kind": "sort"},
        }
        relation.evolve(**changes, widen={"price": pa.int64(), "sold": pa.timestamp("s")}, defaults={"colour": "red"})
        wanted = rows.drop_columns(["tags", "note"])
        days = pa.compute.multiply(rows["sold"].cast(pa.int32()).cast(pa.int64()), 86_400)
        wanted = wanted.set_column(2, "price", rows["price"].cast(pa.int64()))
        wanted = wanted.set_column(3, "sold", days.cast(pa.timestamp("s"))).rename_columns(
            ["id", "sort", *wanted.column_names[2:]]
        )
        wanted = wanted.append_column("size", pa.nulls(len(rows), pa.int16()))
        wanted = wanted.append_column("colour", pa.array(["red"] * len(rows)))
        assert by_id(relation.to_table()).equals(wanted)
        shown = [name for name in rows.column_names if name not in ("tags", "note")]
        with Relation.open(relation.path, shown_as=first) as before:
            assert by_id(before.to_table()).equals(rows.select(shown))
        relation.upsert(wanted.slice(0, 3).set_column(2, "price", pa.array([2**40, -(2**40), None])))
        with (
            Relation.open(relation.path, shown_as=first) as before,
            pytest.raises(semistream.errors.UnsupportedJoinError, match="'price' was widened"),
        ):
            by_id(before.to_table())
        for version in (1, 2, 3):
            with Relation.open(relation.path, version=version) as old:
                assert old.row_count in (600, 602)
                assert old.to_table().num_rows == old.row_count
        relation.compact()
        assert by_id(relation.to_table()).slice(3).equals(wanted.slice(3))


@pytest.mark.parametrize(("winner", "loser"), [("compact", "upsert"), ("upsert", "compact"), ("upsert", "upsert")])
def test_of_two_writers_the_second_writes_with_the_packing_of_the_first(
    winner: str, loser: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, commit, seen = tmp_path / "r", manifests.commit, []
    with packed_builds(0), Relation.build(master(), path, "id", page_size=PAGE) as relation:
        seen.append(relation.packing)
    more = master(50, first=590)

    def overtaken(*arguments: Any) -> None:
        """Let the other writer commit first, once."""
        monkeypatch.setattr(manifests, "commit", commit)
        with packed_builds(1):
            semistream.compact(path) if winner == "compact" else semistream.upsert(path, STRANGE)
        seen.append(manifests.load(path).packing)
        commit(*arguments)

    monkeypatch.setattr(manifests, "commit", overtaken)
    with packed_builds(2):
        assert (semistream.compact(path) if loser == "compact" else semistream.upsert(path, more)) == 3
        seen.append(manifests.load(path).packing)
    packings = {"compact": seen[0] != seen[1], "upsert": seen[0] == seen[1]}
    assert packings[winner]
    assert (seen[1] != seen[2]) == (loser == "compact")
    with Relation.build(master(), tmp_path / "plain", "id", page_size=PAGE) as plain:
        for change in (STRANGE,) * ((winner, loser) != ("compact", "upsert")) + (more,) * (loser == "upsert"):
            plain.upsert(change)
        with Relation.open(path) as relation:
            assert by_id(relation.to_table()).equals(by_id(plain.to_table()))
            check_relation(relation)
            assert list(find_faults(relation)) == []


def test_a_build_over_an_evolved_relation_keeps_the_numbers_of_its_columns(tmp_path: Path) -> None:
    with packed_builds():
        with Relation.build(master(), tmp_path / "r", "id", page_size=PAGE) as relation:
            relation.evolve(drop=["kind"], add={"size": pa.string()})
            layouts, data = relation.manifest.row_layouts, by_id(relation.to_table())
        with Relation.build(data, tmp_path / "r", "id", page_size=PAGE, overwrite=True) as again:
            assert again.manifest.row_layouts.current.equals(layouts.current)
            assert {column.number for column in again.packing.columns} == {2, 3, 4, 8}
            assert by_id(again.to_table()).equals(data)
        with Relation.open(tmp_path / "r", shown_as=layouts) as shown:
            assert by_id(shown.to_table()).equals(data)


def test_columns_that_changed_during_a_build_do_not_change_what_it_packed(tmp_path: Path) -> None:
    """The rows name their columns by number, so the numbers stay, whatever the version before has at the end."""
    with packed_builds(), Relation.build(master(), tmp_path / "r", "id", page_size=PAGE) as relation:
        built, numbers = relation.manifest, range(8)
        changed = evolved(
            evolved(built, ColumnChanges(drop=["tags"])), ColumnChanges(add={"tags": built.schema.field("tags").type})
        )
        assert changed.schema.equals(built.schema)
        made = built.written_after(changed.row_layouts, numbers)
        assert made.row_layouts.current.numbers == tuple(numbers)
        assert made.row_layouts.lineage != changed.row_layouts.lineage


@pytest.mark.parametrize("salt", SALTS)
def test_histories(salt: int, tmp_path: Path) -> None:
    rows = pa.table({
        "id": [1, 1, 2], "since": pa.array([10, 20, 10]), "until": pa.array([20, None, None], pa.int64()),
        "price": [5, 6, 7], "name": ["a", "b", None],
    })  # fmt: skip
    with packed_builds(salt), Relation.build(
        rows, tmp_path / "r", "id", page_size=PAGE, valid_from="since", valid_to="until"
    ) as relation:  # fmt: skip
        assert {column.number for column in relation.packing.columns} == {3, 4}
        relation.upsert(pa.table({"id": [1, 3], "price": [10**15, 1], "name": ["c" * 300, "d"]}), at=30)
        relation.delete(pa.array([2]), at=25)
        assert relation.to_table().sort_by([("id", "ascending"), ("since", "ascending")]).to_pydict() == {
            "id": [1, 1, 1, 2, 3], "since": [10, 20, 30, 10, 30], "until": [20, 30, None, 25, None],
            "price": [5, 6, 10**15, 7, 1], "name": ["a", "b", "c" * 300, None, "d"],
        }  # fmt: skip
        stream = pa.record_batch({"key": [1, 1, 1, 2, 2], "at": [9, 20, 31, 24, 25]})
        join = semistream.create("adaptivejoin", relation, on="key", as_of="at", how="left", memory="2MB")
        with join:
            joined = pa.Table.from_batches(join.process([stream])).sort_by([("key", "ascending"), ("at", "ascending")])
        assert joined["price"].to_pylist() == [None, 6, 10**15, 7, None]
        with pytest.raises(ValueError, match="'price'"):
            manifest_check.check_packing(relation.packing, relation.manifest.row_layouts, ["price", "since"])


@pytest.mark.parametrize("algorithm", ["adaptivejoin", "hybridjoin", "ssij", "inlj", "cachejoin"])
def test_joins(algorithm: str, tmp_path: Path) -> None:
    with packed_builds(1), Relation.build(master(), tmp_path / "r", "id", page_size=PAGE) as relation:
        relation.upsert(STRANGE)
        rows, stream = relation.to_table(), pa.record_batch({"id": np.arange(0, 2000, 2), "n": np.arange(1000)})
        with semistream.create(algorithm, relation, on="id", how="inner", memory="300KB") as join:
            assert join.budget.total >= relation.index_bytes > relation.packing.nbytes
            joined = pa.Table.from_batches(join.process([stream]))
        wanted = pa.Table.from_batches([stream]).join(
            rows.select(["id", "price", "kind", "note"]), "id", join_type="inner"
        )
        names = ["id", "n", "price", "kind", "note"]
        assert (
            joined.select(names)
            .sort_by("id")
            .combine_chunks()
            .equals(wanted.select(names).sort_by("id").combine_chunks())
        )


def test_an_image_of_packed_rows(tmp_path: Path) -> None:
    with packed_builds(2), Relation.build(master(), tmp_path / "r", "id", page_size=PAGE) as relation:
        (tmp_path / "image").mkdir()
        build_image(relation, tmp_path / "image")
        image = Image(tmp_path / "image")
        decoded = relation.to_table().drop_columns(["id"]).nbytes / image.rows
        assert decoded <= image.row_bytes <= 2.5 * decoded  # fields of escaped values count, too
        places, _ = image.find(pa.record_batch({"id": [30, 1, 0]}))
        columns = image.gather(["note", "price", "tags"])(image.data, places.astype(np.int64))
        rows = master().take([10, 0]).select(["note", "price", "tags"]).to_pylist()
        found = [
            dict(zip(("note", "price", "tags"), row, strict=True))
            for row in zip(*(c.to_pylist() for c in columns), strict=True)
        ]
        assert found == [rows[0], dict.fromkeys(rows[0]), rows[1]]


def test_rows_of_another_packing_are_other_rows(tmp_path: Path) -> None:
    """Caches that outlive a task are labelled with it."""
    formats = set()
    for salt in (0, 1, None):
        with packed_builds(salt or 0):
            encoding = "plain" if salt is None else "auto"
            relation = Relation.build(master(), tmp_path / f"r{salt}", "id", page_size=PAGE, encoding=encoding)
        formats.add(row_format(relation.codec, relation.packing))
        relation.close()
    assert len(formats) == 3


@pytest.mark.parametrize("proof", ["checksum", "data", "copy"])
def test_repair(proof: str, tmp_path: Path) -> None:
    data = master()
    with packed_builds(3), Relation.build(data, tmp_path / "r", "id", page_size=PAGE) as relation:
        file = tmp_path / "r" / relation.manifest.shards[0].pages_file
    Relation.open(tmp_path / "r").close()
    before = file.read_bytes()
    copied = tmp_path / "copy"
    copied.mkdir()
    for one in (tmp_path / "r").glob("*"):
        if one.is_file():
            (copied / one.name).write_bytes(one.read_bytes())
    spoiled = bytearray(before)
    if proof == "checksum":
        spoiled[3 * PAGE + 700] ^= 4  # a single bit is found by trying
    else:
        spoiled[3 * PAGE : 4 * PAGE] = bytes(PAGE)
    file.write_bytes(spoiled)
    with Relation.open(tmp_path / "r") as damaged, pytest.raises(CorruptPageError):
        damaged.to_table()
    repair(tmp_path / "r", data.to_reader if proof == "data" else None, copy=copied if proof == "copy" else None)
    assert file.read_bytes() == before


def test_few_rows_and_plain_ones_are_stored_as_before(tmp_path: Path) -> None:
    data = master()
    small, plain = tmp_path / "small", tmp_path / "plain"
    with builds_as_released():
        Relation.build(data, small, "id").close()
    with packed_builds():
        Relation.build(data, plain, "id", encoding="plain").close()
    for path in (small, plain):
        document = json.loads((path / "manifest-00000001.json").read_text())
        assert document["format_version"] == 2
        assert "packing" not in document
    assert data.nbytes < PACKED_FROM
    with packed_builds():
        semistream.compact(plain)
        semistream.compact(small)
    with Relation.open(plain) as relation:
        assert relation.packing is None
    with Relation.open(small) as relation:
        assert relation.packing is not None
    with pytest.raises(ValueError, match="encoding is 'small'; give 'auto'"):
        Relation.build(data, tmp_path / "r", "id", encoding="small")


def test_a_manifest_with_a_packing(tmp_path: Path) -> None:
    with packed_builds(2), Relation.build(master(), tmp_path / "r", "id", page_size=PAGE) as relation:
        manifest = relation.manifest
    text = manifest.to_json()
    assert json.loads(text)["format_version"] == 6
    assert Manifest.from_json(text, "r") == manifest
    for change in ({"packing": [{"column": 1}]}, {"packing": None}, {"format_version": 7}):
        document = {**json.loads(text), **change}
        del document["checksum"]
        with pytest.raises(NotARelationError):
            Manifest.from_json(manifest_check.sealed(json.dumps(document, indent=1)), "r")


def test_inspect_and_build_on_the_command_line(tmp_path: Path) -> None:
    with packed_builds(0), Relation.build(master(), tmp_path / "r", "id", page_size=PAGE) as relation:
        kinds = {column.number: f"{column.kind}, {column.width} B" for column in relation.packing.columns}
    found = CliRunner().invoke(app, ["inspect", str(tmp_path / "r"), "--json"])
    described = json.loads(found.stdout)
    assert described["encodings"] == {
        "id": "key", "kind": kinds[1], "note": kinds[2], "price": kinds[3], "sold": kinds[4],
        "rate": "plain", "open": "plain", "tags": "plain",
    }  # fmt: skip
    assert described["plain_bytes"] > 600 * 30
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "r")]).stdout
    assert "packed: offset" in shown
    assert "unpacked" in shown


def test_a_build_as_released_packs_where_it_pays(tmp_path: Path) -> None:
    """From 1 MiB on, without an option; `adaptivejoin` then reads fewer pages for the same rows."""
    rows = pa.table({"id": range(40_000), "name": [f"a product of brand {i % 50}" for i in range(40_000)]})
    stream = pa.table({"id": [(i * 7919) % 50_000 for i in range(3_000)]})
    with builds_as_released():
        packed = Relation.build(rows, tmp_path / "packed", "id")
    with packed, Relation.build(rows, tmp_path / "plain", "id", encoding="plain") as plain:
        assert packed.packing is not None
        assert packed.nbytes < 0.5 * plain.nbytes
        found = []
        for relation in (packed, plain):
            with semistream.create("adaptivejoin", relation, on="id", how="left", memory="600KB") as join:
                found.append(pa.Table.from_batches(join.process(stream.to_batches(500))))
        assert found[0].equals(found[1])
        assert found[0].num_rows == 3_000
