"""What an update is given: rows and keys in types that are not R's own, and more of them than one array holds."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import semistream
from semistream.core.errors import KeyColumnError, KeyTypeError, RelationBuildError
from semistream.relation.damage.repair import repair
from semistream.relation.relation import Relation
from semistream.relation.rows.fitting import one_batch
from semistream.relation.rows.row_cells import RowLimitError

NOON = dt.datetime(2024, 1, 1, 12)


def spoil(path: Path) -> None:
    """Damage the first page."""
    (file,) = path.glob("shard-*.pages")
    with open(file, "r+b") as opened:
        opened.seek(60)
        opened.write(bytes(byte ^ 0x55 for byte in file.read_bytes()[60:70]))


def keys_left(path: Path, keys: pa.Array, deletes: pa.Array) -> list[Any]:
    Relation.build(pa.table({"k": keys, "v": list(range(len(keys)))}), path, key="k").close()
    semistream.delete(path, deletes)
    with Relation.open(path) as relation:
        return relation.to_table()["k"].to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("keys", "deletes"),
    [
        (pa.array([NOON.date()]), pa.array([NOON])),
        (pa.array([Decimal("1.00")], pa.decimal128(10, 2)), pa.array([1.004])),
        (pa.array([NOON], pa.timestamp("us", "Europe/Berlin")), pa.array([NOON])),
        (pa.array([NOON], pa.timestamp("us")), pa.array([NOON], pa.timestamp("us", "Europe/Berlin"))),
        (pa.array([True]), pa.array([2])),
        (pa.array(["1"]), pa.array([1])),
    ],
    ids=["a time of a day", "a rounded number", "no zone", "a zone", "a number", "no text"],
)
def test_a_key_that_is_not_named_does_not_go(tmp_path: Path, keys: pa.Array, deletes: pa.Array) -> None:
    with pytest.raises(KeyTypeError, match=r"update column 'k' is .* cast"):
        keys_left(tmp_path / "r", keys, deletes)
    with Relation.open(tmp_path / "r") as relation:
        assert (relation.version, relation.row_count) == (1, 1)


@pytest.mark.parametrize(
    ("keys", "deletes", "left"),
    [
        (pa.array([1, 2], pa.int8()), pa.array([1, 300]), [2]),
        (pa.array([NOON], pa.timestamp("s")), pa.array([NOON.replace(microsecond=5)], pa.timestamp("us")), [NOON]),
        (pa.array(["a", "b"]), pa.array(["a", "c"]).dictionary_encode(), ["b"]),
        (
            pa.array([Decimal("1.50"), Decimal("2.00")], pa.decimal128(10, 2)),
            pa.array([Decimal("1.5"), Decimal("2.001")]),
            [Decimal("2.00")],
        ),
        (pa.array([b"abc"], pa.binary(3)), pa.array([b"a", b"abcd"], pa.binary()), [b"abc"]),
    ],
    ids=["too large", "too fine", "a dictionary", "other scales", "other lengths"],
)
def test_keys_that_r_cannot_have_are_passed_over(
    tmp_path: Path, keys: pa.Array, deletes: pa.Array, left: list[Any]
) -> None:
    assert keys_left(tmp_path / "r", keys, deletes) == left


def test_decimals_of_another_scale_are_the_same_keys(tmp_path: Path) -> None:
    Relation.build(pa.table({"k": pa.array([Decimal("1.50")]), "v": [1]}), tmp_path / "r", key="k").close()
    semistream.upsert(tmp_path / "r", pa.table({"k": [Decimal("1.5"), Decimal("7.0")], "v": [2, 3]}))
    with Relation.open(tmp_path / "r") as relation:
        assert relation.to_table().to_pylist() == [{"k": Decimal("1.50"), "v": 2}, {"k": Decimal("7.00"), "v": 3}]
    with pytest.raises(RelationBuildError, match="more digits than R's"):
        semistream.upsert(tmp_path / "r", pa.table({"k": [Decimal("1.501")], "v": [2]}))


@pytest.mark.parametrize("digits", [14, 40, 55])
def test_large_decimals_of_another_scale_are_the_same_keys(tmp_path: Path, digits: int) -> None:
    """Arrow does not divide these correctly."""
    numbers = [2**64 - 1, 2**64 - 2, -(2**64) + 1, 5]
    keys = pa.array([Decimal(number) for number in numbers], pa.decimal128(20, 0))
    theirs = keys.cast(pa.decimal256(76, digits))
    Relation.build(pa.table({"k": keys, "v": [0] * 4}), tmp_path / "r", key="k").close()
    semistream.upsert(tmp_path / "r", pa.table({"k": theirs, "v": [1, 2, 3, 4]}))
    with Relation.open(tmp_path / "r") as relation:
        assert dict(zip(*relation.to_table().to_pydict().values(), strict=True)) == {
            Decimal(number): at for at, number in enumerate(numbers, 1)
        }
    semistream.delete(tmp_path / "r", theirs[:3])
    with Relation.open(tmp_path / "r") as relation:
        assert relation.to_table()["k"].to_pylist() == [Decimal(5)]


def test_a_row_that_r_cannot_have_is_refused_for_people(tmp_path: Path) -> None:
    table = pa.table({"k": pa.array([1], pa.int8()), "v": pa.array([1], pa.int8())})
    Relation.build(table, tmp_path / "r", key="k").close()
    for name in table.schema.names:
        rows = pa.table({"k": [1], "v": [1]}).set_column(0 if name == "k" else 1, name, pa.array([300]))
        with pytest.raises(RelationBuildError, match=rf"column '{name}' of the update is int64.*int8.*300.*cast"):
            semistream.upsert(tmp_path / "r", rows)


def test_a_key_column_that_is_there_twice_is_told(tmp_path: Path) -> None:
    Relation.build(pa.table({"k": [1], "v": [1]}), tmp_path / "r", key="k").close()
    with pytest.raises(KeyColumnError, match="'k' occurs 2 times in the update; rename"):
        semistream.upsert(tmp_path / "r", pa.table([[1], [1], [1]], names=["k", "k", "v"]))


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
def test_more_words_than_a_dictionary_numbers(tmp_path: Path, kind: pa.DataType) -> None:
    """Batches that each have 100 words are built to an R with 500; it can be updated, compacted and repaired, too."""
    words = pa.dictionary(pa.int8(), pa.string())
    batches = [
        pa.record_batch(
            {"id": pa.array(ids).cast(kind), "word": pa.array([f"word {number}" for number in ids]).cast(words)}
        )
        for ids in ([*range(start, start + 100)] for start in range(0, 500, 100))
    ]
    Relation.build(batches, tmp_path / "r", key="id").close()
    semistream.upsert(tmp_path / "r", pa.Table.from_batches(batches))
    semistream.delete(tmp_path / "r", batches[4].select(["id"]).slice(99))
    semistream.compact(tmp_path / "r")
    semistream.vacuum(tmp_path / "r", older_than=-1)
    spoil(tmp_path / "r")
    repaired = repair(tmp_path / "r", pa.Table.from_batches(batches).slice(0, 499).to_reader)
    assert [one.proof for one in repaired] == ["checksum"]
    with Relation.open(tmp_path / "r") as relation:
        assert relation.version == 4
        assert relation.schema.field("word").type == words
        join = semistream.create("inlj", relation, on="id", how="inner")
        stream = pa.record_batch({"id": pa.array(range(500)).cast(kind)})
        found = [row for batch in join.process([stream]) for row in batch.to_pylist()]
        assert {int(row["id"]): row["word"] for row in found} == {number: f"word {number}" for number in range(499)}


def test_words_that_are_numbers_keep_their_sign(tmp_path: Path) -> None:
    batches = [
        pa.record_batch({"id": [number], "v": pa.array([value]).dictionary_encode()})
        for number, value in enumerate([0.0, -0.0])
    ]
    Relation.build(batches, tmp_path / "r", key="id").close()
    semistream.upsert(tmp_path / "r", pa.Table.from_batches(batches))
    semistream.compact(tmp_path / "r")
    semistream.vacuum(tmp_path / "r", older_than=-1)
    spoil(tmp_path / "r")
    assert [one.proof for one in repair(tmp_path / "r", pa.Table.from_batches(batches).to_reader)] == ["checksum"]
    with Relation.open(tmp_path / "r") as relation:
        found = relation.to_table()
        assert found.schema.field("v").type == batches[0].schema.field("v").type
        assert list(map(str, found["v"].to_pylist())) == ["0.0", "-0.0"]


def test_what_is_more_than_one_array_holds_is_refused_and_not_cut() -> None:
    class Large:
        """Arrow leaves several chunks of a table that has more than 2 GiB in one column."""

        num_rows = 4

        def combine_chunks(self) -> pa.Table:
            return pa.table({"v": pa.chunked_array([["a", "b"], ["c", "d"]])})

    with pytest.raises(RowLimitError, match=r"4 rows have more than 2 GiB.*fewer"):
        one_batch(Large())
