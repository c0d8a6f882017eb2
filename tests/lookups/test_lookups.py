"""Look-ups give one row per key, in the order of the keys, whatever the keys, the budget and the thread."""

from __future__ import annotations

import asyncio
import decimal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import semistream
from event_loops import in_own_loop
from packed_builds import packed_builds
from semistream import Relation
from semistream.errors import (
    BudgetTooSmallError,
    ColumnClashError,
    KeyColumnError,
    KeyTypeError,
    SemistreamError,
    UnknownColumnsError,
    UnsupportedJoinError,
    UpdateTooLargeError,
)
from semistream.lookups import Lookups
from semistream.lookups.given_keys import key_batch

ROWS = 5_000


@pytest.fixture
def relation(tmp_path: Path) -> Iterator[Relation]:
    """Every third number is a key; some values are NULL."""
    numbers = np.arange(ROWS)
    names = [None if number % 7 == 0 else f"name {number}" for number in range(ROWS)]
    table = pa.table({"id": pa.array(3 * numbers, pa.int32()), "name": names, "price": numbers / 4})
    with Relation.build(table, tmp_path / "r", key="id") as opened:
        yield opened


def expected(keys: list[int | None]) -> dict[str, list[Any]]:
    known = [key // 3 if key is not None and key % 3 == 0 and 0 <= key < 3 * ROWS else None for key in keys]
    return {
        "name": [None if one is None or one % 7 == 0 else f"name {one}" for one in known],
        "price": [None if one is None else one / 4 for one in known],
        "found": [one is not None for one in known],
    }


def test_order_duplicates_missing_and_null(relation: Relation) -> None:
    keys = [9, 4, None, 0, 9, -3, 3 * ROWS, 2**40]
    for _ in range(2):  # read from R, then from the cache
        assert relation.lookup(keys, found="found").to_pydict() == expected(keys)
    assert relation.lookup([], found="found").to_pydict() == {"name": [], "price": [], "found": []}


def test_one_text_is_no_list_of_columns(tmp_path: Path) -> None:
    table = pa.table({"id": [1], "a": [2], "b": [3]})
    with Relation.build(table, tmp_path / "r", key="id") as relation:
        assert relation.lookup([1], ["a", "b"]).to_pydict() == {"a": [2], "b": [3]}
        with pytest.raises(UnknownColumnsError, match="columns='ab' must name columns of R"):
            relation.lookup([1], "ab")


def test_columns_are_chosen_in_each_call(relation: Relation) -> None:
    assert relation.lookup([3, 4], ["price"]).to_pydict() == {"price": [0.25, None]}
    assert relation.lookup([3, 4], ["price", "name"]).schema.names == ["price", "name"]
    assert relation.lookup([3, 4], [], found="there").to_pydict() == {"there": [True, False]}
    assert relation.lookup([3, 4], []).num_rows == 2
    assert relation.lookup([3], ["name"]).column("name").type == pa.string()


@pytest.mark.parametrize("memory", ["150KB", "1MB", "64MB"])
def test_random_keys_in_any_memory(relation: Relation, memory: str) -> None:
    random = np.random.default_rng(3)
    with relation.lookups(memory) as lookups:
        assert isinstance(lookups, Lookups)
        for size in (1, 2, 7, 400, 1, 9_000, 65_537, 3, 400):
            keys = random.zipf(1.3, size) % (4 * ROWS)
            assert lookups.get(keys, found="found").to_pydict() == expected(keys.tolist())
            lookups.check()
        assert lookups.budget.peak <= lookups.budget.total
        assert lookups.stats.rows_in == sum((1, 2, 7, 400, 1, 9_000, 65_537, 3, 400))


def test_cached_keys_read_no_page(relation: Relation) -> None:
    with relation.lookups("8MB") as lookups:
        keys = [3, 6, 7, 3]
        lookups.get(keys)
        pages = lookups.stats.pages_read
        for _ in range(5):
            lookups.get(keys)
        assert lookups.stats.pages_read == pages > 0
        assert lookups.stats.cache_hits >= 20


@pytest.mark.parametrize("form", ["list", "range", "numpy", "int8", "arrow", "chunked", "dictionary", "pandas",
                                  "polars", "table", "mapping", "frame", "lazy batch"])  # fmt: skip
def test_keys_in_any_form(relation: Relation, form: str) -> None:
    array = pa.array([0, 3, 6])
    given: dict[str, Any] = {
        "list": [0, 3, 6], "range": range(0, 9, 3), "numpy": np.array([0, 3, 6], np.uint64),
        "int8": pa.array([0, 3, 6], pa.int8()), "arrow": array, "chunked": pa.chunked_array([[0, 3], [6]]),
        "dictionary": array.dictionary_encode(), "pandas": pd.Series([0, 3, 6]), "polars": pl.Series([0, 3, 6]),
        "table": pa.table({"other": [1, 1, 1], "id": array}), "mapping": {"id": [0, 3, 6]},
        "frame": pd.DataFrame({"id": [0, 3, 6]}), "lazy batch": pl.DataFrame({"id": [0, 3, 6]}),
    }  # fmt: skip
    for _ in range(2):
        assert relation.lookup(given[form], ["price"]).to_pydict() == {"price": [0.0, 0.25, 0.5]}


def test_integers_that_no_type_holds_are_keys_that_r_does_not_have(relation: Relation) -> None:
    for keys in ([3, 1 << 70], [3, 1 << 63], [3, -(1 << 64)]):
        assert relation.lookup(keys, ["price"], found="f").to_pydict() == {"price": [0.25, None], "f": [True, False]}
    assert relation.lookup([None, 1 << 64, 3], ["price"])["price"].to_pylist() == [None, None, 0.25]


@pytest.mark.parametrize(
    "keys",
    [pd.Series([3, None], dtype="Int64"), pd.Series([3, None], dtype="int64[pyarrow]"), {"id": pd.Series([3, -1])},
     np.array([3, -1], ">i4")],
    ids=["nullable", "arrow", "in a mapping", "big endian"],
)  # fmt: skip
def test_series_with_nulls_and_arrays_of_another_byte_order(relation: Relation, keys: Any) -> None:
    assert relation.lookup(keys, ["price"]).to_pydict() == {"price": [0.25, None]}


def test_nullable_texts_of_pandas(tmp_path: Path) -> None:
    with Relation.build(pa.table({"id": ["a"], "v": [1]}), tmp_path / "r", key="id") as relation:
        assert relation.lookup(pd.Series(["a", None], dtype="string"))["v"].to_pylist() == [1, None]
        with pytest.raises(KeyTypeError, match="surrogates not allowed; the relation's key is string"):
            relation.lookup(["\ud800"])


def test_composite_keys(tmp_path: Path) -> None:
    rows = [("a", 1, "a1"), ("a", 2, "a2"), ("b", 1, None)]
    table = pa.table({"shop": [r[0] for r in rows], "day": pa.array([r[1] for r in rows], pa.int16()),
                      "text": [r[2] for r in rows]})  # fmt: skip
    with Relation.build(table, tmp_path / "r", key=["shop", "day"]) as relation:
        keys = [("b", 1), ("a", 2), ("b", 2), (None, 1), ("a", 70_000), ("a", 1)]
        right = {"text": [None, "a2", None, None, None, "a1"], "f": [True, True, False, False, False, True]}
        for _ in range(2):
            assert relation.lookup(keys, found="f").to_pydict() == right
            shops, days = zip(*keys, strict=True)
            table = pa.table({"day": pa.array(days, pa.int64()), "shop": pa.array(shops).dictionary_encode()})
            assert relation.lookup(table, found="f").to_pydict() == right
        with pytest.raises(KeyColumnError, match=r"'a' is not a key .* give tuples of 2 values"):
            relation.lookup(["a", "b"])
        with pytest.raises(KeyColumnError, match="keys is one column, but the relation's key has 2"):
            relation.lookup(pa.array(["a"]))


@pytest.mark.parametrize(
    ("kind", "ours", "theirs"),
    [
        (pa.string(), ["x", "y"], pa.array(["y", None, "z"], pa.large_string())),
        (pa.binary(2), [b"xx", b"yy"], pa.array([b"yy", None, b"zzz"])),
        (pa.decimal128(30, 2), [decimal.Decimal("1.00"), decimal.Decimal("2.00")],
         pa.array([decimal.Decimal("2.00"), None, decimal.Decimal(10) ** 60], pa.decimal256(76, 2))),
        (pa.decimal128(9, 1), [decimal.Decimal("1.0"), decimal.Decimal("2.0")],
         pa.array([decimal.Decimal("2.0"), None, decimal.Decimal(10) ** 12], pa.decimal128(20, 1))),
        (pa.timestamp("s"), [1, 2], pa.array([2_000, None, 2_500], pa.timestamp("ms"))),
        (pa.uint8(), [1, 2], pa.array([2, None, -1])),
        (pa.bool_(), [False, True], pa.array([True, None, None])),
    ],
)  # fmt: skip
def test_key_types_as_in_joins(tmp_path: Path, kind: pa.DataType, ours: list[Any], theirs: pa.Array) -> None:
    with Relation.build(pa.table({"k": pa.array(ours, kind), "v": [1, 2]}), tmp_path / "r", key="k") as relation:
        for _ in range(2):
            assert relation.lookup(theirs, found="f").to_pydict() == {"v": [2, None, None], "f": [True, False, False]}
        assert relation.lookup(ours).to_pydict() == {"v": [1, 2]}


def test_several_rows_per_key(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2, 2, 3, 2], "name": ["a", "b", "c", None, "d"]})
    with Relation.build(table, tmp_path / "r", key="id") as relation:
        with pytest.raises(UnsupportedJoinError, match="look up with many=True"):
            relation.lookup([1])
        for _ in range(2):
            found = relation.lookup([2, 9, 3, None, 2, 1], many=True, found="f").to_pydict()
            assert found["name"] == [["b", "c", "d"], [], [None], [], ["b", "c", "d"], ["a"]]
            assert found["f"] == [True, False, True, False, True, True]


def test_lists_of_a_unique_relation(relation: Relation) -> None:
    for _ in range(2):
        assert relation.lookup([3, 4], ["price"], many=True).to_pydict() == {"price": [[0.25], []]}


def test_a_key_with_more_rows_than_fit(tmp_path: Path) -> None:
    table = pa.table({"id": np.repeat([1, 2, 3], [5, 30_000, 5]), "n": np.arange(30_010)})
    with Relation.build(table, tmp_path / "r", key="id") as relation, relation.lookups("200KB") as lookups:
        found = lookups.get([3, 2, 1, 9], many=True)["n"].to_pylist()
        assert [len(one) for one in found] == [5, 30_000, 5, 0]
        assert sorted(found[1]) == list(range(5, 30_005))


@pytest.mark.parametrize("seed", range(6))
def test_against_duckdb(tmp_path: Path, seed: int) -> None:
    """Random schemas, keys and budgets; the answer is DuckDB's left join in the order of the keys."""
    random = np.random.default_rng(seed)
    rows = int(random.integers(1, 4_000))
    text = bool(random.integers(2))
    numbers = random.permutation(3 * rows)[:rows]
    made: dict[str, Any] = {"k": [f"key {n}" for n in numbers] if text else numbers}
    if composite := bool(random.integers(2)):
        made["k2"] = pa.array(numbers % 5, pa.int16())
    made["v0"] = pa.array(random.integers(-9, 9, rows), mask=random.random(rows) < 0.2)
    made["v1"] = ["x" * int(n % 50) for n in numbers]
    made["v2"] = pa.array([[int(n), None] for n in numbers])
    table = pa.table(made)
    key = ["k", "k2"] if composite else ["k"]
    names = [name for name in table.column_names if name not in key]
    memory = int(random.choice([150_000, 400_000, 10_000_000]))
    with (
        Relation.build(table, tmp_path / "r", key=key, shards=int(random.integers(1, 4))) as relation,
        relation.lookups(memory) as lookups,
    ):
        for size in random.integers(0, 3_000, 6).tolist():
            asked = random.integers(0, 4 * rows, size)
            keys = pa.table({
                "k": pa.array([f"key {n}" for n in asked] if text else asked, mask=random.random(size) < 0.05),
                "k2": pa.array(asked % 5, pa.int64()),
            }).append_column("place", pa.array(np.arange(size)))  # fmt: skip
            same = " AND ".join(f"keys.{name} = r.{name}" for name in key)
            right = duckdb.sql(
                f"SELECT {', '.join('r.' + name for name in names)}, r.k IS NOT NULL AS f FROM keys "
                f"LEFT JOIN r ON {same} ORDER BY place",
                connection=_with(keys=keys, r=table),
            ).to_arrow_table()
            found = lookups.get(keys, found="f")
            assert found.to_pydict() == right.to_pydict()
            some = [str(name) for name in random.permutation(names)[:2]]
            assert lookups.get(keys, some).to_pydict() == right.select(some).to_pydict()
        lookups.check()


def _with(**tables: pa.Table) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for name, table in tables.items():
        connection.register(name, table)
    return connection


# -- threads and asyncio ----------------------------------------------------------------------------------


def test_threads(relation: Relation) -> None:
    with relation.lookups("300KB") as lookups, ThreadPoolExecutor(8) as pool:

        def ask(seed: int) -> bool:
            random = np.random.default_rng(seed)
            for size in (1, 50, 900):
                keys = random.integers(-5, 3 * ROWS + 5, size)
                if lookups.get(keys, found="found").to_pydict() != expected(keys.tolist()):
                    return False
            return True

        assert all(pool.map(ask, range(40)))


def test_asyncio(relation: Relation) -> None:
    async def ask(seed: int) -> bool:
        random = np.random.default_rng(seed)
        for size in (1, 30, 2_000):
            keys = random.integers(0, 3 * ROWS, size)
            found = await relation.alookup(keys, found="found")
            if found.to_pydict() != expected(keys.tolist()):
                return False
        return True

    async def main() -> list[bool]:
        return await asyncio.gather(*map(ask, range(20)))

    assert all(in_own_loop(main()))


def test_the_event_loop_goes_on_while_pages_are_read(relation: Relation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that blocks until the loop has run would never end otherwise."""
    ran, read = threading.Event(), Relation.ring

    def slow(self: Relation, frames: Any) -> Any:
        assert ran.wait(30)
        return read(self, frames)

    monkeypatch.setattr(Relation, "ring", slow)
    with relation.lookups("300KB") as lookups:

        async def main() -> pa.RecordBatch:
            call = asyncio.ensure_future(lookups.aget([3], ["price"]))
            await asyncio.sleep(0.05)
            ran.set()
            return await call

        assert in_own_loop(main()).to_pydict() == {"price": [0.25]}


# -- R changes --------------------------------------------------------------------------------------------


def row(key: int, name: str) -> pa.Table:
    return pa.table({"id": pa.array([key], pa.int32()), "name": [name], "price": [1.0]})


def test_updates_are_seen_and_the_rest_stays_cached(relation: Relation) -> None:
    with relation.lookups("8MB") as lookups:
        lookups.get(np.arange(0, 600, 3))
        relation.upsert(row(3, "new"))
        relation.upsert(row(4, "more"))
        relation.delete(pa.array([6]))
        before = lookups.stats.pages_read
        assert lookups.get([3, 4, 6, 9], found="f").to_pydict() == {
            "name": ["new", "more", None, "name 3"], "price": [1.0, 1.0, None, 0.75], "f": [True, True, False, True],
        }  # fmt: skip
        pages = lookups.stats.pages_read
        assert pages > before
        lookups.get(np.arange(12, 600, 3))  # cached before the updates
        assert lookups.stats.pages_read == pages
        lookups.check()


def test_another_writer_and_refresh(relation: Relation, tmp_path: Path) -> None:
    assert relation.lookup([3], ["name"])["name"].to_pylist() == ["name 1"]
    with Relation.open(tmp_path / "r") as other:
        other.upsert(row(3, "theirs"))
    assert relation.lookup([3], ["name"])["name"].to_pylist() == ["name 1"]
    assert relation.refresh() == 2
    assert relation.lookup([3], ["name"])["name"].to_pylist() == ["theirs"]
    relation.compact()
    assert relation.lookup([3, 9], ["name"])["name"].to_pylist() == ["theirs", "name 3"]


def test_rows_of_another_packing_after_joins_were_attached(tmp_path: Path) -> None:
    """R shows a compacted version, but reads the pages of the earlier one until joins no longer hold them."""
    rows = pa.table({"id": range(200), "price": range(200)})
    with packed_builds(0), Relation.build(rows, tmp_path / "r", key="id", unique=True) as relation:
        assert relation.lookup([3, 5]).to_pydict() == {"price": [3, 5]}
        join = semistream.create("oracle", relation, on="id", schema=pa.schema({"id": pa.int64()}))
        with packed_builds(2):
            relation.compact()
        relation.unsubscribe(join)
        relation.upsert(pa.table({"id": [5], "price": [55]}))
        assert relation.lookup([3, 5, 190]).to_pydict() == {"price": [3, 55, 190]}


def test_rebuilt_with_other_columns(relation: Relation, tmp_path: Path) -> None:
    relation.lookup([3])
    Relation.build(pa.table({"id": [3], "other": [7]}), tmp_path / "r", key="id", overwrite=True).close()
    relation.refresh()
    assert relation.lookup([3]).to_pydict() == {"other": [7]}


def test_apply_counts_in_the_budget(relation: Relation) -> None:
    with relation.lookups("200KB") as lookups:
        assert isinstance(lookups, Lookups)
        lookups.get([3])
        relation.apply(row(3, "applied"))
        assert lookups.get([3], ["name"])["name"].to_pylist() == ["applied"]
        assert lookups.budget.parts()["updates of R"] > 0
        every = pa.table({"id": pa.array(np.arange(0, 3 * ROWS, 3), pa.int32()), "name": ["all"] * ROWS,
                          "price": np.zeros(ROWS)})  # fmt: skip
        with pytest.raises(UpdateTooLargeError):
            relation.apply(every)
        assert lookups.get([3, 6], ["name"])["name"].to_pylist() == ["applied", "name 2"]
        lookups.check()


def test_updates_while_threads_look_up(relation: Relation) -> None:
    """Every answer is of one version: both keys have the same name in each."""
    both = pa.table({"id": pa.array([3, 12_000], pa.int32()), "price": [0.0, 0.0]})
    relation.upsert(both.append_column("name", pa.array(["0", "0"])).select(["id", "name", "price"]))
    stop, wrong = threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            found = relation.lookup([3, 12_000], ["name"])["name"].to_pylist()
            if found[0] != found[1]:
                wrong.append(found)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 15):
        named = both.append_column("name", pa.array([str(number)] * 2)).select(["id", "name", "price"])
        relation.upsert(named)
        assert relation.lookup([3], ["name"])["name"].to_pylist() == [str(number)]
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_keys_get_several_rows_while_a_call_waits(relation: Relation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that was given one row per key must not return more rows than keys."""
    read, two = key_batch, pa.concat_tables([row(3, "one"), row(3, "two")])

    def slow(*given: Any) -> pa.RecordBatch:
        batch = read(*given)
        if relation.version == 1:
            relation.upsert(two)
        return batch

    monkeypatch.setattr("semistream.lookups.lookups.key_batch", slow)
    with relation.lookups("300KB") as lookups:
        with pytest.raises(UnsupportedJoinError, match="look up with many=True"):
            lookups.get([3, 6])
        assert lookups.get([3, 6], ["name"], many=True).to_pydict() == {"name": [["one", "two"], ["name 2"]]}


class Then:
    """A lock, and what another thread does as soon as it is free."""

    def __init__(self, lock: threading.Lock, work: Callable[[], object]) -> None:
        self._lock, self._work = lock, [work]

    def acquire(self, blocking: bool = True) -> bool:
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()
        if self._work:
            self._work.pop()()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_columns_change_while_an_answer_from_the_cache_is_awaited(relation: Relation) -> None:
    with relation.lookups("300KB") as lookups:
        assert isinstance(lookups, Lookups)
        lookups.get([3])
        lookups._lock = Then(lookups._lock, lambda: relation.evolve(drop=["name"]))  # type: ignore[assignment]
        assert in_own_loop(lookups.aget([3])).to_pydict() == {"name": ["name 1"], "price": [0.25]}
        assert in_own_loop(lookups.aget([3])).to_pydict() == {"price": [0.25]}


# -- errors -----------------------------------------------------------------------------------------------


def test_a_failed_read_is_not_the_end(relation: Relation, monkeypatch: pytest.MonkeyPatch) -> None:
    with relation.lookups("300KB") as lookups:
        with monkeypatch.context() as broken:
            broken.setattr(Relation, "ring", _fails)
            with pytest.raises(OSError, match="no disk"):
                lookups.get([3])
        assert lookups.get([3], ["price"]).to_pydict() == {"price": [0.25]}


def _fails(*_: object) -> None:
    raise OSError("no disk")


def test_errors_say_what_to_do(relation: Relation) -> None:
    with pytest.raises(KeyTypeError, match=r"keys is 3, a single value; look up a list of keys, such as \[3\]"):
        relation.lookup(3)
    with pytest.raises(KeyTypeError, match="keys is 'abc', a single value"):
        relation.lookup("abc")
    with pytest.raises(KeyTypeError, match=r"column 'id' is string, but the relation's key 'id' is int32; .*cast"):
        relation.lookup(["a"])
    with pytest.raises(KeyTypeError, match=r"column 'id' is 3, a single value; look up a list of keys, such as \[3\]"):
        relation.lookup({"id": 3})
    with pytest.raises(KeyTypeError, match="column 'id' is 'ab', a single value"):
        relation.lookup({"id": "ab"})
    with pytest.raises(KeyTypeError, match="keys is an array of 2 dimensions; give one of 1 dimension"):
        relation.lookup(np.array([[3]]))
    with pytest.raises(KeyTypeError, match=r"column 'id' is string, but the relation's key 'id' is int32"):
        relation.lookup(np.array(["3"]))
    with pytest.raises(KeyTypeError, match="Unsupported numpy type"):
        relation.lookup(np.array([1j]))
    with pytest.raises(KeyColumnError, match="keys has no column 'id'; it has nr"):
        relation.lookup({"nr": [1]})
    with pytest.raises(KeyColumnError, match="key column 'id' is not in the batch of keys"):
        relation.lookup(pa.table({"nr": [1]}))
    with pytest.raises(UnknownColumnsError, match="must name columns of R"):
        relation.lookup([3], ["nmae"])
    with pytest.raises(ColumnClashError, match="give another name"):
        relation.lookup([3], found="name")
    with pytest.raises(BudgetTooSmallError, match="too small for lookup"):
        relation.lookups(memory=1000)


def test_closing(relation: Relation) -> None:
    lookups = relation.lookups("300KB")
    lookups.close()
    with pytest.raises(SemistreamError, match="this look-up cache is closed"):
        lookups.get([3])
    assert relation.lookup([3], ["price"]).to_pydict() == {"price": [0.25]}
    relation.close()
    with pytest.raises(SemistreamError, match="the relation is closed"):
        relation.lookup([3])


def test_closing_a_cache_that_was_awaited(relation: Relation) -> None:
    lookups, many = relation.lookups("300KB"), np.arange(2_000)
    assert in_own_loop(lookups.aget(many, found="found")).to_pydict() == expected(many.tolist())
    lookups.close()
    for keys in ([3], many):
        with pytest.raises(SemistreamError, match="this look-up cache is closed"):
            in_own_loop(lookups.aget(keys))
