"""A relation equals the table that it follows at every commit."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

import semistream
from followed_histories import OPTIONS, DeltaHistory, IcebergHistory, check_versions, followed, rows_of, run_history
from packed_builds import packed_builds
from semistream.relation.followed import applying
from semistream.relation.followed.follow import FollowThread, catch_up
from semistream.relation.followed.follower import Follower, Lag, Step
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.relation.updates import compact, history, vacuum

pytestmark = pytest.mark.slow


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_random_histories(tmp_path, kind, seed):
    run_history(tmp_path, kind, seed)


def products(keys: range | list[int], text: str = "product") -> pa.Table:
    return pa.table({"id": list(keys), "name": [f"{text} {key}" for key in keys]})


def delta(tmp_path: Path, rows: pa.Table, **options: object) -> str:
    write_deltalake(tmp_path / "table", rows, **options)
    return str(tmp_path / "table")


def content(path: Path) -> list[tuple]:
    with Relation.open(path) as relation:
        return rows_of(relation.to_table())


def test_function_builds_then_follows_and_history_names_commits(tmp_path):
    table, path = delta(tmp_path, products(range(10))), tmp_path / "r"
    steps: list[Step] = []
    assert semistream.follow(table, path, key="id", report=steps.append) == 1
    write_deltalake(table, products(range(10, 15)), mode="append")
    DeltaTable(table).delete("id < 3")
    assert semistream.follow(table, path, report=steps.append) == 3
    assert content(path) == rows_of(products(range(3, 15)))
    assert [(one.number, one.operation, one.commit) for one in history(path)] == [
        (1, "build", "0"), (2, "follow", "1"), (3, "follow", "2"),
    ]  # fmt: skip
    assert [(one.upserted, one.deleted, one.lag.commits) for one in steps] == [(10, 0, 0), (5, 0, 1), (0, 3, 0)]
    assert semistream.follow(table, path) == 3, "nothing new"


def test_only_changed_rows_are_written(tmp_path):
    """A merge rewrites whole files; R gets only the pages of rows that differ, and a compaction changes no page."""
    rows = products(range(5000))
    table, path = delta(tmp_path, rows), tmp_path / "r"
    semistream.follow(table, path, key="id", page_size=512)
    merge = DeltaTable(table).merge(
        products([7, 8, 9], "new"), predicate="s.id = t.id", source_alias="s", target_alias="t"
    )
    merge.when_matched_update_all().execute()
    write_deltalake(table, products([9000]), mode="append")
    DeltaTable(table).optimize.compact()
    steps: list[Step] = []
    semistream.follow(table, path, report=steps.append)
    assert [(one.upserted, one.deleted) for one in steps] == [(3, 0), (1, 0), (0, 0)]
    assert steps[0].bytes_written <= 2 * 512
    assert steps[2].bytes_written == 0
    assert manifests.load(path, 4).shards == manifests.load(path, 3).shards


def test_a_column_may_have_any_name(tmp_path):
    rows = products(range(10)).append_column("__semistream_added", pa.array([False] * 10))
    table = delta(tmp_path, rows)
    assert semistream.follow(table, tmp_path / "r", key="id") == 1
    DeltaTable(table).delete("id = 3")
    assert semistream.follow(table, tmp_path / "r") == 2
    assert content(tmp_path / "r") == rows_of(rows.filter(pc.field("id") != 3))


def test_a_nested_column_gets_a_field(tmp_path):
    """Rows that stay keep their values in the other fields."""
    from pyiceberg.types import LongType

    history = IcebergHistory(tmp_path, 0)
    kind = pa.struct([("a", pa.int64()), ("b", pa.string())])
    rows = pa.table({"id": [1, 2], "s": pa.array([{"a": 1, "b": "x"}, None], kind), "l": [[1], []]})
    table = history.catalog.create_table("shop.nested", schema=rows.schema)
    table.append(rows)

    def follow() -> list[dict]:
        semistream.follow("shop.nested", tmp_path / "r", key="id", catalog="test", options=history.options)
        with Relation.open(tmp_path / "r") as relation:
            return relation.to_table().sort_by("id").to_pylist()

    assert follow() == rows.to_pylist()
    with table.update_schema() as update:
        update.add_column(("s", "c"), LongType())
    added = pa.array([{"a": 3, "b": None, "c": 9}], pa.struct([*kind, ("c", pa.int64())]))
    table.append(pa.table({"id": [3], "s": added, "l": pa.array([None], pa.list_(pa.int64()))}))
    assert follow() == table.scan().to_arrow().sort_by("id").to_pylist()
    assert follow()[0]["s"] == {"a": 1, "b": "x", "c": None}


def test_packed_relations_follow_and_plain_ones_stay_plain(tmp_path):
    table, packed, plain = delta(tmp_path, products(range(50))), tmp_path / "packed", tmp_path / "plain"
    with packed_builds(1):
        semistream.follow(table, packed, key="id", page_size=512)
        semistream.follow(table, plain, key="id", page_size=512, encoding="plain")
        semistream.follow(table, plain, rebuild=True)
    packing = manifests.load(packed).packing
    write_deltalake(table, products(range(40, 60), "x" * 300), mode="overwrite")
    for path in (packed, plain):
        semistream.follow(table, path)
        assert content(path) == rows_of(products(range(40, 60), "x" * 300))
    assert manifests.load(packed, 2).packing == packing is not None
    assert manifests.load(plain).packing is None


def test_change_data_feed_is_used(tmp_path, monkeypatch):
    table = delta(tmp_path, products(range(100)), configuration={"delta.enableChangeDataFeed": "true"})
    path = tmp_path / "r"
    semistream.follow(table, path, key="id")
    DeltaTable(table).update({"name": "'changed'"}, predicate="id = 5")
    follower = Follower(table, path)
    read: list[str] = []
    rows = follower.source._rows  # type: ignore[attr-defined]
    monkeypatch.setattr(follower.source, "_rows", lambda name, *rest: (read.append(name), rows(name, *rest))[1])
    assert catch_up(follower) == 1
    assert read
    assert all(name.startswith("_change_data/") for name in read)
    assert dict(content(path))[5] == "changed"


def test_large_commits_are_applied_in_parts_and_spill(tmp_path, monkeypatch):
    table, path = delta(tmp_path, products(range(4000))), tmp_path / "r"
    semistream.follow(table, path, key="id", page_size=512, shards=2)
    changed = [*range(0, 1000, 3), *range(5000, 5300)]
    merge = DeltaTable(table).merge(
        products(changed, "other"), predicate="s.id = t.id", source_alias="s", target_alias="t"
    )
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    monkeypatch.setattr(applying, "pages_in_memory", lambda *_: 5)
    semistream.follow(table, path, memory="20KB")
    wanted = dict(rows_of(products(range(4000)))) | dict(rows_of(products(changed, "other")))
    assert content(path) == rows_of(pa.table({"id": list(wanted), "name": list(wanted.values())}))
    shards = manifests.load(path).shards
    assert all(len(shard.deltas) > 3 for shard in shards), "there were several parts"
    named = {name for shard in shards for name in shard.files}
    assert {file.name for file in path.glob("shard-*")} == named | {
        name for shard in manifests.load(path, 1).shards for name in shard.files
    }, "files of earlier parts are removed"
    assert not list(path.glob(".sorting*"))


def test_a_commit_that_changes_most_pages_builds_again(tmp_path):
    table, path = delta(tmp_path, products(range(3000))), tmp_path / "r"
    semistream.follow(table, path, key="id", page_size=512)
    write_deltalake(table, products(range(3000), "all new"), mode="overwrite")
    steps: list[Step] = []
    semistream.follow(table, path, report=steps.append)
    assert [one.operation for one in steps] == ["build"]
    assert not any(shard.deltas for shard in manifests.load(path).shards)
    assert content(path) == rows_of(products(range(3000), "all new"))


def test_compaction_keeps_following(tmp_path):
    table, path = delta(tmp_path, products(range(100))), tmp_path / "r"
    semistream.follow(table, path, key="id")
    write_deltalake(table, products(range(100, 120)), mode="append")
    semistream.follow(table, path)
    compact(path)
    write_deltalake(table, products(range(120, 130)), mode="append")
    semistream.follow(table, path)
    vacuum(path, older_than=-1)
    assert content(path) == rows_of(products(range(130)))


def test_many_changed_pages_are_compacted(tmp_path):
    table, path = delta(tmp_path, products(range(20_000))), tmp_path / "r"
    semistream.follow(table, path, key="id", page_size=512)
    pages = manifests.load(path).shards[0].pages
    for number in range(3):
        merge = DeltaTable(table).merge(
            products(list(range(number, 20_000, 150)), f"v{number}"),
            predicate="s.id = t.id", source_alias="s", target_alias="t",
        )  # fmt: skip
        merge.when_matched_update_all().execute()
    semistream.follow(table, path)
    operations = [one.operation for one in history(path)]
    assert "compact" in operations, pages
    assert dict(content(path))[152] == "v2 152"


def test_null_keys_are_left_out(tmp_path):
    rows = pa.table({"id": [1, None, 2, None], "name": ["a", "b", "c", "d"]})
    table, path = delta(tmp_path, rows), tmp_path / "r"
    semistream.follow(table, path, key="id")
    write_deltalake(table, pa.table({"id": pa.array([None, 3], pa.int64()), "name": ["e", "f"]}), mode="append")
    DeltaTable(table).delete("name = 'b'")
    semistream.follow(table, path)
    assert content(path) == [(1, "a"), (2, "c"), (3, "f")]
    assert manifests.load(path).properties["rows_with_null_key"] == "2"


def test_lag_counts_commits_and_their_age(tmp_path):
    table, path = delta(tmp_path, products(range(5))), tmp_path / "r"
    semistream.follow(table, path, key="id")
    follower = Follower(table, path)
    assert follower.lag() == Lag(0, 0.0)
    for key in (10, 11):
        write_deltalake(table, products([key]), mode="append")
    lag = follower.lag()
    assert lag.commits == 2
    assert 0 < lag.seconds < 600


def test_two_followers_apply_each_commit_once(tmp_path):
    table, path = delta(tmp_path, products(range(50))), tmp_path / "r"
    semistream.follow(table, path, key="id", page_size=512)
    for key in range(100, 110):
        write_deltalake(table, products([key]), mode="append")
    failures: list[BaseException] = []

    def run() -> None:
        try:
            semistream.follow(table, path)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [one.commit for one in history(path)] == [str(number) for number in range(11)]
    assert content(path) == rows_of(products([*range(50), *range(100, 110)]))


def test_thread_follows_until_closed(tmp_path):
    table, path = delta(tmp_path, products(range(5))), tmp_path / "r"
    arrived, failures = threading.Event(), []
    lags: list[Lag] = []

    def report(step: Step) -> None:
        if step.commit == "1":
            arrived.set()

    thread = FollowThread(
        Follower(table, path, key="id"), 0.05, failed=failures.append, report=report, lagging=lags.append
    )
    thread.start()
    write_deltalake(table, products([7]), mode="append")
    assert arrived.wait(60)
    thread.close()
    assert not failures
    assert lags[-1].commits == 0
    assert content(path) == rows_of(products([0, 1, 2, 3, 4, 7]))


def test_thread_waits_longer_than_a_clock_counts(tmp_path):
    table, path = delta(tmp_path, products(range(10))), tmp_path / "r"
    failed: list[BaseException] = []
    built = threading.Event()
    thread = FollowThread(Follower(table, path, "id"), float("inf"), failed=failed.append, report=lambda _: built.set())
    thread.start()
    assert built.wait(60)
    thread.join(0.5)
    assert thread.is_alive()
    thread.close()
    assert not failed


def test_thread_reports_an_error_that_does_not_pass(tmp_path):
    table, path = delta(tmp_path, products(range(5))), tmp_path / "r"
    semistream.follow(table, path, key="id")
    follower = Follower(table, path)
    semistream.upsert(path, products([1], "by hand"))
    failures: list[BaseException] = []
    thread = FollowThread(follower, 0.01, failed=failures.append)
    thread.start()
    thread.join(60)
    assert "change the table instead" in str(failures[0])


@pytest.mark.parametrize("history_of", [DeltaHistory, IcebergHistory])
def test_rebuild_skips_to_the_newest_commit(tmp_path, history_of):
    source, path = history_of(tmp_path, 1), tmp_path / "relation"
    followed(source.follower(path, key="id", **OPTIONS))
    for _ in range(3):
        source.append()
    steps = followed(source.follower(path, rebuild=True))
    assert [one.operation for one in steps] == ["build"]
    check_versions(source, path, set())


def test_iceberg_identifier_fields_are_the_key(tmp_path):
    from pyiceberg.catalog import load_catalog
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField, StringType

    options = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    catalog = load_catalog("test", **options)
    catalog.create_namespace("shop")
    schema = Schema(
        NestedField(1, "id", LongType(), required=True), NestedField(2, "name", StringType()), identifier_field_ids=[1]
    )
    rows = pa.table(
        {"id": [1, 2], "name": ["a", "b"]}, schema=pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string())])
    )
    catalog.create_table("shop.products", schema=schema).append(rows)
    semistream.follow("shop.products", tmp_path / "r", catalog="test", options=options)
    with Relation.open(tmp_path / "r") as relation:
        assert relation.key.names == ("id",)
        assert rows_of(relation.to_table()) == [(1, "a"), (2, "b")]


def test_columns_that_change_are_not_a_rebuild(tmp_path):
    """R's columns change as those of an Iceberg table do; a column of a dropped one's name and type is another one."""
    source, path = IcebergHistory(tmp_path, 5), tmp_path / "relation"
    followed(source.follower(path, key="id", **OPTIONS))
    for change in (source.add_column, source.rename_column, source.widen_column, source.replace_column,
                   source.drop_column):  # fmt: skip
        change()
    steps = followed(source.follower(path))
    assert [step.operation for step in steps] == ["follow"] * len(steps)
    assert len(steps) >= 4
    check_versions(source, path, set())
    table = delta(tmp_path, products(range(2000)))
    semistream.follow(table, tmp_path / "r", key="id", page_size=512)
    wide = pa.table({"id": [3000], "name": ["new"], "stock": [1]})
    write_deltalake(table, wide, mode="append", schema_mode="merge")
    [step] = followed(Follower(table, tmp_path / "r"))
    assert (step.operation, step.upserted, step.bytes_written) == ("follow", 1, 512)
    assert (3000, "new", 1) in content(tmp_path / "r")
    write_deltalake(table, pa.table({"id": [1], "stock": ["few"]}), mode="overwrite", schema_mode="overwrite")
    [step] = followed(Follower(table, tmp_path / "r"))
    assert step.operation == "build", "texts are not numbers"
    assert content(tmp_path / "r") == [(1, "few")]


@pytest.mark.parametrize("kind", [DeltaHistory, IcebergHistory])
def test_secondary_indexes_of_a_followed_relation_stay_in_step(tmp_path, kind):
    """Also through columns that are added, and after the indexed column is gone: then the index is, too."""
    source, path = kind(tmp_path, 3), tmp_path / "relation"
    followed(source.follower(path, key="id"))
    with Relation.open(path) as relation:
        text = (pa.string(), pa.large_string())
        column = next(field.name for field in relation.schema if field.type in text)
        relation.add_index(column)
    there = True
    for _ in range(8):
        source.go()
        followed(source.follower(path))
        with Relation.open(path) as relation:
            rows = relation.to_table()
            there = there and column in rows.column_names
            assert relation.secondary_indexes == ([(column,)] if there else [])
            for columns in relation.secondary_indexes:
                with relation.by(columns) as index:
                    kept = rows.filter(pc.is_valid(rows[column]))
                    assert sorted(map(str, index.to_table().to_pylist())) == sorted(map(str, kept.to_pylist()))


def test_an_indexed_column_that_the_table_drops(tmp_path):
    table = delta(tmp_path, products(range(9)))
    semistream.follow(table, tmp_path / "r", key="id")
    with Relation.open(tmp_path / "r") as relation:
        relation.add_index("name")
    write_deltalake(table, pa.table({"id": [1, 2]}), mode="overwrite", schema_mode="overwrite")
    semistream.follow(table, tmp_path / "r")
    with Relation.open(tmp_path / "r") as relation:
        assert relation.secondary_indexes == []
        assert relation.row_count == 2
