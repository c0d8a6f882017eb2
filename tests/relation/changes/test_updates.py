"""Updates of R in memory: against a model, page by page, and what readers see of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import semistream
from semistream.core.errors import RelationBuildError, SemistreamError, UnsupportedJoinError
from semistream.relation.changes.overlay import Change
from semistream.relation.changes.patch import Patch
from semistream.relation.pages.page_index import ClusteredIndex
from semistream.relation.pages.page_layout import FIRST, LAST, WHOLE, page_keys
from semistream.relation.relation import Relation
from semistream.relation.spans import locate_spans

Model = dict[Any, list[str]]


def table(model: Model, kind: pa.DataType | None = None) -> pa.Table:
    pairs = [(key, value) for key, values in model.items() for value in values]
    return pa.table(
        {
            "id": pa.array([key for key, _ in pairs], kind or pa.int64()),
            "value": pa.array([value for _, value in pairs], pa.string()),
        }
    )


def content(relation: Relation) -> Model:
    found: Model = {}
    for row in relation.to_table().to_pylist():
        found.setdefault(row["id"], []).append(row["value"])
    return {key: sorted(values) for key, values in found.items()}


def check_pages(relation: Relation) -> None:
    """Assert what every page promises: order, flags, and an index that leads to all rows."""
    relation.overlay.check()
    for index in relation.indexes:
        assert isinstance(index, ClusteredIndex)
        index.check()
    order = relation.page_order if relation.page_order.size else np.arange(relation.page_count)
    frames = relation.frames(max(1, order.size))
    relation.read(order, frames[: order.size])
    bounds = np.cumsum([0, *(index.first.size for index in relation.indexes)])  # type: ignore[attr-defined]
    total = 0
    for begin, end in pairwise(bounds):
        here = frames[begin:end]
        keys, flags, _ = page_keys(here, relation.layout.stride)
        total += keys.size
        page = np.repeat(np.arange(end - begin), here[:, 12:16].copy().view(np.uint32).reshape(-1))
        assert np.all(np.diff(keys) >= 0), "rows are not in key order"
        for key in np.unique(keys):
            rows = np.flatnonzero(keys == key)
            assert ((flags[rows] & FIRST) > 0).tolist() == [True] + [False] * (rows.size - 1), key
            assert ((flags[rows] & LAST) > 0).tolist() == [False] * (rows.size - 1) + [True], key
            whole = np.unique(page[rows]).size == 1
            assert ((flags[rows] & WHOLE) > 0).tolist() == [whole] * rows.size, key
            located = relation.locate(np.array([key]))
            assert set(order[begin + page[rows]]) <= set(located.pages), key
    assert total == relation.row_count


keys = st.integers(-30, 30)
values = st.lists(st.text("ab", max_size=90), min_size=1, max_size=9)
models = st.dictionaries(keys, values, max_size=40)


@given(
    start=models,
    changes=st.lists(st.tuples(models, st.lists(keys, max_size=20)), max_size=4),
    shards=st.integers(1, 3),
    fill=st.sampled_from([0.5, 0.8, 1.0]),
)
@pytest.mark.slow
def test_updates_do_what_a_dictionary_does(
    tmp_path_factory: pytest.TempPathFactory,
    start: Model,
    changes: list[tuple[Model, list[int]]],
    shards: int,
    fill: float,
) -> None:
    path = tmp_path_factory.mktemp("r") / "r"
    with Relation.build(table(start), path, "id", page_size=512, fill=fill, shards=shards) as relation:
        model = {key: sorted(rows) for key, rows in start.items()}
        for upserts, deletes in changes:
            change = relation.apply(table(upserts), deletes=pa.array(deletes, pa.int64()))
            for key in deletes:
                model.pop(key, None)
            model |= {key: sorted(rows) for key, rows in upserts.items()}
            assert change.keys.tolist() == sorted({*upserts, *deletes})
            assert content(relation) == model
            check_pages(relation)
            assert relation.row_count == sum(map(len, model.values()))
        asked = np.arange(-35, 35)
        spans = locate_spans(relation, asked, asked)
        located = relation.locate(asked)
        order = relation.page_order if relation.page_order.size else np.arange(relation.page_count)
        for i in range(asked.size):
            span = spans.bounds[i]
            run = np.arange(spans.first[span], spans.first[span] + spans.length[span])
            assert order[run].tolist() == located.pages[located.bounds[i] : located.bounds[i + 1]].tolist()


def test_fixed_rows_and_room_left_by_the_fill_factor(tmp_path: Path) -> None:
    data = pa.table({"id": np.arange(0, 2000, 2), "value": np.zeros(1000, np.int64)})
    with Relation.build(data, tmp_path / "r", "id", page_size=512, fill=0.8) as relation:
        pages = relation.page_count
        # one row into each page: the room that the fill factor left takes it
        found = relation.locate(np.arange(0, 2000, 2))
        per_page = np.unique(found.pages, return_index=True)[1]
        new = np.arange(0, 2000, 2)[per_page] + 1
        change = relation.apply(pa.table({"id": new, "value": np.full(new.size, 7)}))
        assert relation.page_count == pages, "a page was split although it had room"
        assert change.pages.size == pages
        check_pages(relation)
        # as many again into one page: it is split, and no other is touched
        between = pa.table({"id": np.full(200, 1), "value": np.arange(200)})
        change = relation.apply(between)
        assert relation.page_count > pages
        assert change.pages.size <= 1 + relation.page_count - pages
        check_pages(relation)
        assert not relation.unique
        assert (relation.version, relation.revision) == (1, 2)


def test_pages_without_rows_are_used_again(tmp_path: Path) -> None:
    data = pa.table({"id": np.arange(500), "value": np.arange(500)})
    with Relation.build(data, tmp_path / "r", "id", page_size=512) as relation:
        pages = relation.page_count
        for _ in range(3):
            relation.apply(deletes=pa.array(np.arange(500)))
            assert relation.to_table().num_rows == 0
            assert relation.locate(np.arange(-5, 505)).pages.size == 0
            check_pages(relation)
            relation.apply(data)
            assert relation.to_table().sort_by("id").equals(data)
            check_pages(relation)
            assert relation.page_count == pages


def test_hashed_keys(tmp_path: Path) -> None:
    model: Model = {f"key {i}": [str(i)] * (i % 4 + 1) for i in range(300)}
    with Relation.build(table(model, pa.string()), tmp_path / "r", "id", page_size=512, shards=2) as relation:
        gone = {f"key {i}" for i in range(0, 300, 7)}
        new: Model = {f"key {i}": ["new", "newer"] for i in range(0, 400, 3)}
        relation.apply(table(new, pa.string()), deletes=pa.table({"id": pa.array([*gone, "absent"])}))
        wanted = {key: rows for key, rows in model.items() if key not in gone} | new
        assert content(relation) == wanted


def test_another_key_of_the_same_hash_is_refused_and_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Relation.build(table({"a": ["1"]}, pa.string()), tmp_path / "r", "id") as relation:
        key = relation.key.encode(pa.record_batch({"id": ["a"]}))[0]
        monkeypatch.setattr(
            relation.key,
            "encode",
            lambda batch, on=None: (np.repeat(key, batch.num_rows), np.ones(batch.num_rows, bool)),
        )
        with pytest.raises(RelationBuildError, match="same 64-bit hash"):
            relation.apply(table({"b": ["2"]}, pa.string()))
        relation.apply(deletes=pa.array(["b"]))
        assert content(relation) == {"a": ["1"]}
        relation.apply(deletes=pa.array(["a"]))
        assert content(relation) == {}


def test_readers_of_the_overlay_read_runs_and_pages_past_the_files(tmp_path: Path) -> None:
    data = pa.table({"id": np.arange(3000), "value": np.arange(3000)})
    with Relation.build(data, tmp_path / "r", "id", page_size=512) as relation:
        files = relation.page_count
        relation.apply(pa.table({"id": np.repeat([100, 1500], 60), "value": np.arange(120)}))
        assert relation.page_count > files
        every = relation.frames(relation.page_count)
        relation.read(np.arange(relation.page_count), every)
        generator = np.random.default_rng(0)
        for size in (1, 2, 7, 40):
            for _ in range(20):
                pages = generator.integers(0, relation.page_count, size)
                some = relation.frames(size)
                relation.read(pages, some)
                assert np.array_equal(some, every[pages])
        before = relation.counters.pages
        relation.read(relation.overlay.ids, relation.frames(relation.overlay.ids.size))
        assert relation.counters.pages == before, "pages held in memory were read from the files"


class Ear:
    """Agrees, refuses, or fails when told."""

    def __init__(self, *, refuse: bool = False, fail: bool = False) -> None:
        self.refuse, self.fail = refuse, fail
        self.asked: list[int] = []
        self.heard: list[Change] = []
        self.cancelled = 0
        self.errors: list[BaseException] = []

    def prepare_update(self, patch: Patch) -> Ear:
        if self.refuse:
            raise SemistreamError("not now")
        self.asked.append(patch.row_count)
        return self

    def commit(self, change: Change) -> None:
        if self.fail:
            raise ZeroDivisionError
        self.heard.append(change)

    def cancel(self) -> None:
        self.cancelled += 1

    def failed(self, error: BaseException) -> None:
        self.errors.append(error)


def test_listeners_may_refuse_and_are_told(tmp_path: Path) -> None:
    with Relation.build(table({1: ["a"]}), tmp_path / "r", "id") as relation:
        ear = Ear()
        relation.subscribe(ear)
        relation.apply(table({2: ["b"]}))
        assert [(change.revision, change.keys.tolist()) for change in ear.heard] == [(1, [2])]
        ear.refuse = True
        with pytest.raises(SemistreamError, match="not now"):
            relation.apply(table({3: ["c"]}))
        assert content(relation) == {1: ["a"], 2: ["b"]}
        stale = relation.prepare(table({3: ["c"]}))
        ear.refuse = False
        relation.apply(table({4: ["d"]}))
        with pytest.raises(SemistreamError, match="prepare it again"):
            relation.install(stale)


def test_all_are_asked_before_any_is_told(tmp_path: Path) -> None:
    with Relation.build(table({1: ["a"]}), tmp_path / "r", "id") as relation:
        ears = [Ear() for _ in range(8)]
        for ear in ears:
            relation.subscribe(ear)
        ears[5].refuse = True
        with pytest.raises(SemistreamError, match="not now"):
            relation.apply(table({3: ["c"]}))
        assert relation.revision == 0
        assert content(relation) == {1: ["a"]}
        assert all(ear.cancelled == len(ear.asked) for ear in ears), "who agreed is told that it came to nothing"
        assert not any(ear.heard for ear in ears)


def test_who_fails_when_told_keeps_the_update_from_nobody(tmp_path: Path) -> None:
    with Relation.build(table({1: ["a"]}), tmp_path / "r", "id") as relation:
        ears = [Ear(fail=place % 2 == 0) for place in range(6)]
        for ear in ears:
            relation.subscribe(ear)
        relation.apply(table({3: ["c"]}))
        assert content(relation) == {1: ["a"], 3: ["c"]}
        assert [len(ear.heard) for ear in ears] == [0, 1] * 3
        assert [len(ear.errors) for ear in ears] == [1, 0] * 3


def test_what_cannot_be_applied(tmp_path: Path) -> None:
    data = table({1: ["a"], 2: ["b"]})
    with Relation.build(data, tmp_path / "s", "id", clustered=False) as scattered, pytest.raises(UnsupportedJoinError):
        scattered.apply(data)
    with Relation.build(data, tmp_path / "r", "id", page_size=512) as relation:
        with pytest.raises(RelationBuildError, match="value"):
            relation.apply(pa.table({"id": [1]}))
        with pytest.raises(RelationBuildError, match="larger page_size"):
            relation.apply(table({1: ["x" * 600]}))
        assert relation.apply(pa.table({"id": [None], "value": ["z"]})).keys.size == 0
        assert content(relation) == {1: ["a"], 2: ["b"]}


def test_joins_see_updates(tmp_path: Path) -> None:
    data = pa.table({"id": np.repeat(np.arange(300), 3), "value": np.arange(900)})
    stream = pa.record_batch({"id": np.arange(-10, 400), "n": np.arange(410)})
    with Relation.build(data, tmp_path / "r", "id", page_size=512) as relation:
        relation.apply(
            pa.table({"id": np.repeat([5, 150, 350], 40), "value": np.arange(120)}), deletes=pa.array([7, 8, 9, 299])
        )
        answers = []
        for algorithm in ("oracle", "inlj", "hybridjoin", "meshjoin"):
            join = semistream.create(algorithm, relation, on="id", how="left", memory="1MB")
            result = pa.Table.from_batches(join.process([stream]))
            answers.append(result.sort_by([("n", "ascending"), ("value", "ascending")]))
        assert all(answer.equals(answers[0]) for answer in answers)
        assert answers[0].num_rows == 410 + (300 - 4 - 2) * 2 + 3 * 39
