"""Building a relation: what is written is all there, and a build that fails leaves nothing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream.core.errors import KeyColumnError, RelationBuildError
from semistream.relation.builder import NULL_KEYS
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.pages.page_layout import FIRST, LAST, WHOLE, page_keys, page_rows
from semistream.relation.pages.shard_writer import ShardWriter
from semistream.relation.pages.sorter import KeySorter
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests


def table_of(ids: Any, kind: pa.DataType | None = None) -> pa.Table:
    """R with a value that tells which row it was."""
    ids = pa.array(ids, kind)
    return pa.table({"id": ids, "row": np.arange(len(ids)), "text": [f"row {i} " * (i % 5) for i in range(len(ids))]})


def rows_of(table: pa.Table) -> Counter[str]:
    return Counter(map(repr, table.to_pylist()))


@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("page_size", [512, 1024, "8KiB", 65536])
@pytest.mark.parametrize("fill", [0.1, 0.8, 1.0])
def test_everything_is_there(tmp_path: Path, clustered: bool, shards: int, page_size: Any, fill: float) -> None:
    table = table_of(np.random.default_rng(1).integers(0, 300, 700))
    relation = Relation.build(
        table, tmp_path / "r", key="id", clustered=clustered, shards=shards, page_size=page_size, fill=fill
    )
    assert rows_of(relation.to_table()) == rows_of(table)
    assert relation.row_count == 700
    assert not relation.unique
    assert len(relation.indexes) == shards


def test_a_clustered_relation_is_in_key_order_and_equal_keys_in_order_of_arrival(tmp_path: Path) -> None:
    table = table_of(np.random.default_rng(2).integers(-20, 20, 500))
    back = Relation.build(table, tmp_path / "r", key="id", page_size=512).to_table()
    assert back.equals(table.sort_by([("id", "ascending"), ("row", "ascending")]))


def test_a_scattered_relation_keeps_its_order(tmp_path: Path) -> None:
    table = table_of(np.random.default_rng(3).integers(0, 50, 500))
    assert Relation.build(table, tmp_path / "r", key="id", clustered=False, page_size=512).to_table().equals(table)


@pytest.mark.parametrize("fill", [0.25, 0.5, 0.8])
def test_the_fill_factor_leaves_that_much_room(tmp_path: Path, fill: float) -> None:
    table = table_of(range(4000))
    full = Relation.build(table, tmp_path / "full", key="id", page_size=4096)
    part = Relation.build(table, tmp_path / "part", key="id", page_size=4096, fill=fill)
    assert part.page_count == pytest.approx(full.page_count / fill, rel=0.06)
    frames = part.frames(part.page_count)
    part.read(np.arange(part.page_count), frames)
    used = frames[:, 16:20].copy().view(np.uint32)
    assert used.max() <= 4096 * fill
    # all pages but the last are as full as a row of at most 80 bytes lets them be
    assert used[:-1].min() > 4096 * fill - 120


@pytest.mark.parametrize("clustered", [True, False])
def test_flags_say_where_a_key_begins_and_ends_and_whether_it_is_whole(tmp_path: Path, clustered: bool) -> None:
    rng = np.random.default_rng(4)
    ids = np.repeat(np.arange(60), np.resize([1, 1, 5, 1, 40, 2], 60))
    if not clustered:
        rng.shuffle(ids)
    relation = Relation.build(table_of(ids), tmp_path / "r", key="id", clustered=clustered, page_size=512)
    frames = relation.frames(relation.page_count)
    relation.read(np.arange(relation.page_count), frames)
    keys, flags, _ = page_keys(frames, relation.layout.stride)
    page = np.repeat(np.arange(relation.page_count), page_rows(frames))
    for key in np.unique(ids):
        at = np.flatnonzero(keys == key)
        assert np.flatnonzero(flags[at] & FIRST).tolist() == [0]
        assert np.flatnonzero(flags[at] & LAST).tolist() == [at.size - 1]
        whole = np.unique(page[at]).size == 1
        assert ((flags[at] & WHOLE) != 0).tolist() == [whole] * at.size


@pytest.mark.parametrize("memory", [1, 20_000, 200_000])
def test_sorting_in_little_memory_gives_the_same(tmp_path: Path, memory: int) -> None:
    rng = np.random.default_rng(5)
    table = table_of(rng.integers(-(10**12), 10**12, 40_000) // rng.integers(1, 10**11, 40_000))
    batches = table.to_batches(max_chunksize=1500)
    small = Relation.build(batches, tmp_path / "small", key="id", memory=memory, shards=2)
    assert small.to_table().equals(Relation.build(table, tmp_path / "large", key="id", shards=2).to_table())
    assert not any(name.startswith(".sorting") for name in os.listdir(tmp_path / "small")), "spilled runs were left"


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
@pytest.mark.parametrize("others", [0, 3000])
def test_a_key_with_more_rows_than_memory_holds(tmp_path: Path, kind: pa.DataType, others: int) -> None:
    """It is written in parts. Pages, flags of the rows and the index are what a build in much memory makes."""
    ids = np.random.default_rng(4).permutation(np.append(np.full(30_000, 7), np.arange(1000, 1000 + others)))
    table = table_of(pa.array(ids).cast(kind))
    built = {
        memory: Relation.build(table.to_batches(1000), tmp_path / str(memory), key="id", memory=memory)
        for memory in (200_000, 10**9)
    }
    pages, shards = [], []
    for relation in built.values():
        frames = relation.frames(relation.page_count)
        relation.read(np.arange(relation.page_count), frames)
        keys, flags, _ = page_keys(frames, relation.layout.stride)
        pages.append((keys.tolist(), flags.tolist(), page_rows(frames).tolist()))
        shard = relation.manifest.shards[0]
        shards.append((shard.rows, shard.pages, shard.last_key, shard.unique))
    assert pages[0] == pages[1]
    assert shards[0] == shards[1]
    assert shards[0][3] is False
    assert built[200_000].to_table().equals(built[10**9].to_table())


@given(
    batches=st.lists(st.lists(st.integers(-50, 50), max_size=40), max_size=12),
    memory=st.sampled_from([1, 300, 2000, 10**6]),
)
def test_the_sorter_sorts_stably(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], memory: int
) -> None:
    schema = pa.schema({"id": pa.int64(), "row": pa.int64()})
    sorter = KeySorter(schema, tmp_path_factory.mktemp("sorter"), memory)
    row, wanted = 0, []
    for ids in batches:
        rows = list(range(row, row + len(ids)))
        row += len(ids)
        wanted += zip(ids, rows, strict=True)
        sorter.add(np.array(ids, np.int64), pa.record_batch([pa.array(ids, pa.int64()), rows], schema=schema))
    found = []
    for keys, batch in sorter.sorted():
        assert keys.tolist() == batch.column("id").to_pylist()
        found += zip(batch.column("id").to_pylist(), batch.column("row").to_pylist(), strict=True)
    sorter.close()
    assert found == sorted(wanted)


def test_the_merge_cuts_long_runs_into_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semistream.relation.pages.sorter._BLOCK", 16)
    rng = np.random.default_rng(6)
    schema = pa.schema({"id": pa.int64()})
    sorter = KeySorter(schema, tmp_path, 8000)
    everything = []
    for _ in range(30):
        ids = np.repeat(rng.integers(-1000, 1000, 20), rng.integers(1, 30, 20))
        everything.append(ids)
        sorter.add(ids, pa.record_batch([ids], schema=schema))
    slices = [keys for keys, _ in sorter.sorted()]
    sorter.close()
    assert len(slices) > 3
    assert np.array_equal(np.concatenate(slices), np.sort(np.concatenate(everything)))


def test_rows_with_a_null_key_are_left_out_and_counted(tmp_path: Path) -> None:
    table = pa.table({"a": [1, None, 3, 4], "b": ["x", "y", None, "z"], "v": [1, 2, 3, 4]})
    relation = Relation.build(table, tmp_path / "r", key=["a", "b"])
    assert sorted(relation.to_table().column("v").to_pylist()) == [1, 4]
    assert manifests.load(tmp_path / "r").properties[NULL_KEYS] == "2"


def test_several_key_columns_in_any_place(tmp_path: Path) -> None:
    table = pa.table({"v": [1, 2, 3], "b": ["x", "y", "x"], "w": [1.5, None, 2.5], "a": [7, 7, 8]})
    relation = Relation.build(table, tmp_path / "r", key=["a", "b"], shards=2)
    assert relation.schema.equals(table.schema)
    assert relation.value_schema.names == ["v", "w"]
    assert rows_of(relation.to_table()) == rows_of(table)
    assert relation.unique


@pytest.mark.parametrize("how", ["table", "batch", "batches", "reader", "stream"])
def test_data_may_come_as_any_arrow(tmp_path: Path, how: str) -> None:
    table = table_of([3, 1, 2])

    class Stream:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return table.to_reader().__arrow_c_stream__(requested_schema)

    data = {
        "table": lambda: table,
        "batch": lambda: table.to_batches()[0],
        "batches": lambda: iter(table.to_batches(max_chunksize=2)),
        "reader": table.to_reader,
        "stream": Stream,
    }[how]()
    assert Relation.build(data, tmp_path / "r", key="id").to_table().column("id").to_pylist() == [1, 2, 3]


def test_an_empty_relation(tmp_path: Path) -> None:
    for clustered in (True, False):
        relation = Relation.build(table_of([], pa.int64()), tmp_path / str(clustered), key="id", clustered=clustered)
        assert relation.row_count == 0
        assert relation.unique
        assert relation.to_table().num_rows == 0
        keys = np.array([0, -(2**63), 2**63 - 1])
        assert relation.locate(keys).counts.max() <= 1


@pytest.mark.parametrize(
    ("data", "error", "named"),
    [
        ([], RelationBuildError, "no schema"),
        ([1, 2], RelationBuildError, "list"),
        (7, RelationBuildError, "int"),
        (pa.table([[1], [2]], names=["id", "id"]), RelationBuildError, "'id' occurs 2 times"),
        (pa.table({"id": [1.5]}), KeyColumnError, "cannot be a key"),
        (pa.table({"other": [1]}), KeyColumnError, "other"),
    ],
)
def test_what_cannot_be_built_is_refused(tmp_path: Path, data: Any, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        Relation.build(data, tmp_path / "r", key="id")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"page_size": 500}, "500"),
        ({"page_size": "1GiB"}, "64 MiB"),
        ({"fill": 0.01}, "0.01"),
        ({"fill": 1.5}, "1.5"),
        ({"shards": 0}, "shards"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Relation.build(table_of([1]), tmp_path / "r", key="id", **options)
    assert not (tmp_path / "r").exists()


def test_a_row_wider_than_a_page_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    fixed = pa.table({"id": [1], "v": pa.array([b"x" * 600], pa.binary(600))})
    varying = pa.table({"id": [1, 2], "v": ["x", "y" * 600]})
    for table in (fixed, varying):
        with pytest.raises(RelationBuildError, match="give a larger page_size"):
            Relation.build(table, tmp_path / "r", key="id", page_size=512)
        assert not (tmp_path / "r").exists()
        assert Relation.build(table, tmp_path / f"{table.num_rows}", key="id", page_size=1024).row_count


@pytest.mark.parametrize(
    ("varying", "widest"),
    [
        # a page of 512 B less its header, the row's key, flag and padding, and the byte of NULL bits
        (False, 512 - 32 - 16 - 1),
        # the same less where the row starts, its length, and where its text ends
        (True, 512 - 32 - 16 - 1 - 4 - 4 - 4),
    ],
)
def test_the_widest_row_that_fits_is_taken(tmp_path: Path, varying: bool, widest: int) -> None:
    for width in (widest, widest + 1):
        kind = pa.binary() if varying else pa.binary(width)
        table = pa.table({"id": [1, 2], "v": pa.array([b"x" * width] * 2, kind)})
        path = tmp_path / str(width)
        if width == widest:
            relation = Relation.build(table, path, key="id", page_size=512)
            assert relation.to_table().equals(table)
            assert relation.page_count == 2
        else:
            with pytest.raises(RelationBuildError, match="give a larger page_size"):
                Relation.build(table, path, key="id", page_size=512)


def _failing(table: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from table.to_batches(max_chunksize=50)
    raise ConnectionError("the source broke off")


@pytest.mark.parametrize("clustered", [True, False])
def test_a_source_that_breaks_off_leaves_nothing(tmp_path: Path, clustered: bool) -> None:
    for path in (tmp_path / "new", tmp_path / "old"):
        if path.name == "old":
            Relation.build(table_of([1, 2, 3]), path, key="id")
        before = set(os.listdir(path)) if path.exists() else None
        with pytest.raises(ConnectionError):
            Relation.build(
                _failing(table_of(range(500))), path, key="id", clustered=clustered, memory=1000, overwrite=True
            )
        assert before == (set(os.listdir(path)) if path.exists() else None)
    assert Relation.open(tmp_path / "old").to_table().num_rows == 3


def test_a_disk_that_fills_up_at_the_end_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(manifests, "commit", full)
    with pytest.raises(OSError, match="No space"):
        Relation.build(table_of([1, 2]), tmp_path / "r", key="id")
    assert not (tmp_path / "r").exists()


def test_overwriting_makes_a_new_version_and_keeps_the_old_readable(tmp_path: Path) -> None:
    Relation.build(table_of([1, 2, 3]), tmp_path / "r", key="id")
    with pytest.raises(RelationBuildError, match="overwrite=True"):
        Relation.build(table_of([4]), tmp_path / "r", key="id")
    assert Relation.open(tmp_path / "r").row_count == 3
    assert Relation.build(table_of([4]), tmp_path / "r", key="id", overwrite=True).version == 2
    assert Relation.open(tmp_path / "r").to_table().column("id").to_pylist() == [4]
    assert Relation.open(tmp_path / "r", version=1).to_table().column("id").to_pylist() == [1, 2, 3]


def test_a_path_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RelationBuildError, match="is a file"):
        Relation.build(table_of([1]), tmp_path / "file", key="id")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letters.txt").write_text("mine")
    with pytest.raises(RelationBuildError, match="other files"):
        Relation.build(table_of([1]), tmp_path / "full", key="id", overwrite=True)
    assert (tmp_path / "full" / "letters.txt").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    assert Relation.build(table_of([1]), tmp_path / "empty", key="id").row_count == 1


# -- two keys with one hash -------------------------------------------------------------------------------


def weaken(monkeypatch: pytest.MonkeyPatch, buckets: int) -> None:
    """Let hashed keys have only so many different key64."""
    strong = KeyCodec.encode

    def weak(self: KeyCodec, batch: pa.RecordBatch, on: Any = None) -> Any:
        keys, valid = strong(self, batch, on)
        return (keys if self.exact else np.mod(keys, buckets)), valid

    monkeypatch.setattr(KeyCodec, "encode", weak)


@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("shards", [1, 4])
def test_two_keys_with_one_hash_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clustered: bool, shards: int
) -> None:
    weaken(monkeypatch, 40)
    table = table_of([f"key {i}" for i in range(100)])
    with pytest.raises(RelationBuildError, match="same 64-bit hash"):
        Relation.build(table, tmp_path / "r", key="id", clustered=clustered, shards=shards, page_size=512)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("kind", [pa.string(), pa.binary_view(), pa.decimal128(30, 2)])
def test_a_repeated_key_is_no_collision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clustered: bool, kind: pa.DataType
) -> None:
    weaken(monkeypatch, 3)
    value = 10**25 if pa.types.is_decimal(kind) else "the same"
    table = table_of([value] * 300, kind)
    relation = Relation.build(table, tmp_path / "r", key="id", clustered=clustered, page_size=512)
    assert not relation.unique
    assert rows_of(relation.to_table()) == rows_of(table)


def test_a_collision_across_written_batches_is_found(tmp_path: Path) -> None:
    """The pair lies on both sides of a border between two calls of the writer, and of two pages."""
    table = table_of(["a"] * 60 + ["b"] * 60)
    codec = KeyCodec.for_schema(table.schema, "id")
    for cut in (59, 60, 61):
        writer = ShardWriter(tmp_path, f"shard-{cut}", table.schema, codec, page_bytes=512)
        with pytest.raises(RelationBuildError, match="same 64-bit hash"):  # noqa: PT012 - some call must raise
            for begin, end in ((0, cut), (cut, 120)):
                batch = table.slice(begin, end - begin).combine_chunks().to_batches()[0]
                writer.write(np.full(batch.num_rows, 5), batch)
            writer.close()
        writer.abort()


def test_rows_out_of_order_are_refused_by_a_clustered_shard(tmp_path: Path) -> None:
    table = table_of([3, 1])
    codec = KeyCodec.for_schema(table.schema, "id")
    writer = ShardWriter(tmp_path, "shard", table.schema, codec, page_bytes=512)
    with pytest.raises(RelationBuildError, match="in key order"):
        writer.write(np.array([3, 1]), table.to_batches()[0])
    writer.abort()
    assert os.listdir(tmp_path) == []


def test_a_number_of_shards_whose_names_fit_no_memory(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shards must be at most 65,536, not 65,537"):
        Relation.build(pa.table({"id": [1]}), tmp_path / "r", key="id", shards=65_537)
    assert not (tmp_path / "r").exists()


# -- columns that Arrow cannot sort -----------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["1MB", 1])
@pytest.mark.parametrize("shards", [1, 2])
def test_columns_that_arrow_cannot_take_from(tmp_path: Path, memory: Any, shards: int) -> None:
    rows = 60
    ends = pa.RunEndEncodedArray.from_arrays(pa.array([20, 45, rows], pa.int32()), pa.array([1, None, 3]))
    table = pa.table(
        {
            "id": pa.array([None if i == 50 else f"{i * 7 % 61:03d}" for i in range(rows)], pa.string_view()),
            "view": pa.array([None if i % 9 == 4 else "v" * i for i in range(rows)], pa.string_view()),
            "views": pa.array([[f"{i}"] * (i % 3) for i in range(rows)], pa.list_(pa.binary_view())),
            "runs": ends,
        }
    )
    relation = Relation.build(
        table.to_batches(max_chunksize=17), tmp_path / "r", key="id", page_size=1024, memory=memory, shards=shards
    )
    kept = [row for row in table.to_pylist() if row["id"] is not None]
    back = relation.to_table()
    assert back.schema.equals(table.schema)
    assert Counter(map(repr, back.to_pylist())) == Counter(map(repr, kept))
