"""A relation in a store is what it is in a directory: built, read, joined, updated, vacuumed, repaired."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import semistream
from s3_server import S3Server
from semistream.core.errors import CorruptPageError, NotARelationError, StorageError, UnsupportedPathError
from semistream.relation import updates
from semistream.relation.damage.repair import repair
from semistream.relation.devices.store_device import MOST_FETCHED, _requests, _widest_gap
from semistream.relation.relation import Relation
from semistream.relation.stores import object_store
from semistream.relation.stores.object_store import StoreUnavailableError
from semistream.relation.stores.store_path import StorePath, place_of
from semistream.relation.versions import store_leases
from semistream.relation.versions.pins import version_for

R = "s3://bucket/warehouse/products"


def master(rows: int = 4000, tag: str = "") -> pa.Table:
    return pa.table({"id": np.arange(rows), "name": [f"{tag}{number:05d}" for number in range(rows)]})


def contents(path: str, version: int | None = None) -> dict[int, str]:
    with Relation.open(path, version=version) as relation:
        table = relation.to_table()
        return dict(zip(table["id"].to_pylist(), table["name"].to_pylist(), strict=True))


@pytest.mark.parametrize("clustered", [True, False])
def test_built_and_read_as_in_a_directory(s3: S3Server, tmp_path, clustered: bool) -> None:
    options = {"key": "id", "page_size": 512, "shards": 3, "clustered": clustered}
    with (
        Relation.build(master(), R, **options) as stored,
        Relation.build(master(), tmp_path / "r", **options) as beside,
    ):
        assert stored.to_table().equals(beside.to_table())
        keys = np.array([5, 3999, 17, 123456, 2048])
        assert np.array_equal(stored.locate(keys).pages, beside.locate(keys).pages)
        assert str(stored.path) == R
        assert stored.counters.requests > 0
    assert not [key for key in s3.objects if "/.writers/" in key]


@pytest.mark.parametrize("algorithm", ["cachejoin", "hybridjoin", "meshjoin", "ssij", "partitioned_join"])
def test_joins_are_exact(s3: S3Server, algorithm: str) -> None:
    keys = np.random.default_rng(1).zipf(1.3, 3000) % 5000
    stream = pa.table({"id": keys, "at": np.arange(keys.size)})
    with Relation.build(master(), R, key="id", page_size=512) as relation:
        joined = semistream.create(algorithm, relation, on="id", how="left", memory="200KB")
        found = pa.Table.from_batches(joined.process(stream.to_batches(max_chunksize=500)))
    got = Counter(zip(found["at"].to_pylist(), found["name"].to_pylist(), strict=True))
    assert got == Counter((at, f"{key:05d}" if key < 4000 else None) for at, key in enumerate(keys.tolist()))


def test_a_join_brings_at_most_four_times_what_it_wants(s3: S3Server) -> None:
    """Also where a request costs as much as the transfer of many pages: a plan for a disk would read all of R."""
    table = pa.table({"id": np.arange(40_000), "name": [f"{number:090d}" for number in range(40_000)]})
    with Relation.build(table, R, key="id", page_size=1024) as relation:
        s3.delay = 0.004
        join = semistream.create("adaptivejoin", relation, on="id", memory=relation.nbytes // 10)
        keys = pa.record_batch({"id": np.arange(0, 40_000, 80)})
        assert sum(result.num_rows for result in join.process([keys])) == 500
        wanted = join.stats.pages_useful * relation.page_bytes
        assert 0 < wanted <= join.stats.store_bytes <= 4 * wanted


def test_versions_come_and_go(s3: S3Server) -> None:
    Relation.build(master(), R, key="id", page_size=512, shards=2).close()
    assert updates.upsert(R, pa.table({"id": [7, 9000], "name": ["seven", "new"]})) == 2
    assert updates.delete(R, pa.array([8])) == 3
    assert contents(R)[7] == "seven"
    assert 8 not in contents(R)
    assert contents(R, 1) == dict(enumerate(master()["name"].to_pylist()))
    assert updates.compact(R) == 4
    assert [one.number for one in updates.history(R)] == [1, 2, 3, 4]
    assert version_for(place_of(R), "query-a", 3) == 4
    updates.delete(R, pa.array([9]))
    assert version_for(place_of(R), "query-a", 3) == 4, "a replay reads what its batch began with"
    _age(s3)
    removed = updates.vacuum(R, older_than=0)
    assert sorted(one.number for one in updates.history(R)) == [4, 5]
    assert len(removed) > 3
    assert contents(R, 4)[9] == "00009"
    with pytest.raises(NotARelationError, match="no version 1"):
        Relation.open(R, version=1)
    with pytest.raises(semistream.core.errors.RelationBuildError, match="already holds a relation"):
        Relation.build(master(), R, key="id")


def test_two_writers_one_wins_and_the_other_works_again(s3: S3Server) -> None:
    Relation.build(master(500), R, key="id", page_size=512).close()

    def write(mine: int) -> None:
        for turn in range(4):
            updates.upsert(R, pa.table({"id": [10_000 + 10 * mine + turn], "name": [f"{mine}-{turn}"]}))

    threads = [threading.Thread(target=write, args=(mine,)) for mine in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = contents(R)
    assert {found[10_000 + 10 * mine + turn] for mine in range(3) for turn in range(4)} == {
        f"{mine}-{turn}" for mine in range(3) for turn in range(4)
    }
    assert len(updates.history(R)) == 13, "each update is a version of its own"


def test_an_answer_that_is_lost_is_no_other_writer(s3: S3Server) -> None:
    lost = []

    def lose(method: str, key: str) -> int | None:
        if method == "PUT" and "manifest-" in key and not lost:
            lost.append(key)
            return -1
        return None

    s3.fault = lose
    Relation.build(master(300), R, key="id").close()
    assert lost
    assert [one.number for one in updates.history(R)] == [1]


def test_errors_that_pass_are_not_seen(s3: S3Server) -> None:
    count = iter(range(10**6))
    s3.fault = lambda method, key: 503 if next(count) % 4 == 0 else None
    with Relation.build(master(2000), R, key="id", page_size=512) as relation:
        assert relation.to_table().num_rows == 2000
    count = iter(range(10**6))
    s3.fault = lambda method, key: 0 if next(count) % 5 == 0 else None  # hangs up
    assert len(contents(R)) == 2000


@pytest.mark.slow
def test_a_store_that_stays_away_is_said(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "_PATIENCE", timedelta(seconds=0.5))
    object_store._opened.clear()
    with Relation.build(master(2000), R, key="id", page_size=512) as relation:
        s3.fault = lambda method, key: 500
        frames = relation.frames(2)
        with pytest.raises(StoreUnavailableError, match=r"could not be read, even after retries.*check that"):
            relation.read(np.array([1, 9]), frames)
        assert not frames.any()
        for part in ("manifest", ".index", "bucket"):  # nothing is said to be damaged
            s3.fault = lambda method, key, part=part: 500 if part in key or (part == "bucket" and not key) else None
            with pytest.raises(StoreUnavailableError):
                Relation.open(R)
        s3.calm()
        relation.read(np.array([1, 9]), frames)
        s3.objects.clear()
        with pytest.raises(semistream.relation.devices.device.DeviceError, match=r"is gone.*older_than"):
            relation.read(np.array([1, 9]), frames)


@pytest.mark.slow
def test_silence_of_seconds_is_waited_for(s3: S3Server) -> None:
    with Relation.build(master(2000), R, key="id", page_size=512) as relation:
        s3.delay = 2.0
        threading.Timer(2.5, s3.calm).start()
        assert relation.to_table().num_rows == 2000


def test_what_is_wrong_is_said_with_the_remedy(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    Relation.build(master(300), R, key="id").close()
    with pytest.raises(NotARelationError, match="no relation at s3://bucket/nothing"):
        Relation.open("s3://bucket/nothing")
    with pytest.raises(StorageError, match="no such bucket; create it"):
        Relation.open("s3://elsewhere/r")
    s3.forbidden = "PUT"
    with pytest.raises(StorageError, match=r"does not permit it.*credentials"):
        updates.delete(R, pa.array([1]))
    s3.forbidden = "GET HEAD PUT"
    with pytest.raises(StorageError, match=r"does not permit it.*credentials"):
        Relation.open(R)
    s3.calm()
    s3.conditional = False
    object_store._opened.clear()
    with pytest.raises(StorageError, match="conditional puts"):
        updates.delete(R, pa.array([1]))
    assert [one.number for one in updates.history(R)] == [1]
    for wrong, why in {"s3://bucket": "its own path", "webhdfs://n/r": "s3://, .*gs://", "s3://a:b@c/r": "creden",
                       "s3://bucket/../r": "'..'"}.items():  # fmt: skip
        with pytest.raises(UnsupportedPathError, match=why) as raised:
            Relation.open(wrong)
        assert "a:b" not in str(raised.value)


def test_secrets_stay_where_they_are(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "_PATIENCE", timedelta(seconds=0.3))
    object_store._opened.clear()
    relation = Relation.build(master(300), R, key="id")
    place = place_of(R)
    assert isinstance(place, StorePath)
    said = [repr(relation), repr(place), repr(place.store), repr(relation.device), str(pickle.dumps(place))]
    s3.fault = lambda method, key: 500
    for key in ("gone", "x?X-Amz-Signature=very-secret-word"):
        with pytest.raises(StorageError) as raised:
            (place / key).read_bytes()
        said += [str(raised.value), repr(raised.value.__cause__)]
    said += [str(content) for content, _, _ in s3.objects.values()]
    assert not [text for text in said if "very-secret-word" in text and "X-Amz" not in text]
    assert pickle.loads(pickle.dumps(place)) == place


@pytest.mark.slow
def test_what_a_killed_writer_left_goes_with_vacuum(s3: S3Server) -> None:
    Relation.build(master(300), R, key="id").close()
    before = set(s3.objects)
    code = f"""
import os, pyarrow as pa
from semistream.relation import updates
from semistream.relation.storage import manifest
manifest.commit = lambda *_: os._exit(9)
updates.upsert({R!r}, pa.table({{"id": [1], "name": ["x"]}}))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 9
    left = set(s3.objects) - before
    assert any(name.endswith(".delta") for name in left)
    assert any("/.writers/" in name for name in left)
    removed = updates.vacuum(R)
    assert len(removed) == 3, "delta, index and map"
    assert {key for key in s3.objects if not key.endswith(".fate")} == before
    assert updates.delete(R, pa.array([2])) == 2


def test_damage_is_found_and_repaired_in_place(s3: S3Server) -> None:
    Relation.build(master(), R, key="id", page_size=512).close()
    key = next(key for key in s3.objects if key.endswith(".pages"))
    sound = s3.objects[key][0]
    index = next(key for key in s3.objects if key.endswith(".index"))
    s3.put(key, sound[:1000] + b"??" + sound[1002:])
    with Relation.open(R) as relation, pytest.raises(CorruptPageError, match="page 1 of s3://bucket"):
        relation.to_table()
    assert [(one.file, one.page) for one in repair(R, master().to_reader)] == [(f"s3://bucket/{key}", 1)]
    assert s3.objects[key][0] == sound
    s3.put(index, b"0" * len(s3.objects[index][0]))
    with pytest.raises(NotARelationError, match=r"index s3://bucket.*repair"):
        Relation.open(R)
    assert [one.file for one in repair(R)] == [f"s3://bucket/{index}"]
    assert contents(R) == dict(enumerate(master()["name"].to_pylist()))


def _age(s3: S3Server) -> None:
    """Make all that is there a day old."""
    for key, (content, written, mark) in list(s3.objects.items()):
        s3.objects[key] = content, written - 86_000, mark


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=300), st.integers(0, 40))
def test_over_gaps_no_more_is_brought_than_four_times_what_is_wanted(pages: list[int], gap: int) -> None:
    ordered = np.sort(pages)
    wanted, most = np.unique(pages).size, 64
    bounds = _requests(ordered, np.array([0, 1000, 3000]), *_widest_gap(ordered, gap), most)
    firsts, lasts = ordered[bounds[:-1]], ordered[bounds[1:] - 1]
    brought = int((lasts - firsts + 1).sum())
    assert wanted <= brought <= MOST_FETCHED * wanted
    assert (np.diff(bounds) > 0).all()
    assert (lasts - firsts < most).all()
    assert ((firsts < 1000) == (lasts < 1000)).all(), "no request is for two objects"
    between = firsts[1:] - lasts[:-1] - 1
    assert (between >= 0).all()
    # two that are apart had to be, or there was no room for what is between
    could = (between <= gap) & (lasts[1:] - firsts[:-1] < most) & ((firsts[1:] < 1000) == (lasts[:-1] < 1000))
    assert (brought + between[could] > MOST_FETCHED * wanted).all()


def test_pages_at_regular_distances_share_requests() -> None:
    """All gaps are as wide, and not all of them may be brought: some are."""
    pages = np.arange(0, 20_000, 6)
    bounds = _requests(pages, np.array([0, 20_000]), *_widest_gap(pages, 8), 64)
    assert bounds.size - 1 < 0.6 * pages.size


def test_a_lease_that_was_given_up_does_not_come_back(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last sign of life may be on its way just then."""
    monkeypatch.setattr(store_leases, "_HEARTBEAT", 0.001)
    looked, given_up = threading.Event(), threading.Event()
    is_file = StorePath.is_file

    def slow(self: StorePath) -> bool:
        found = is_file(self)
        looked.set()
        given_up.wait(0.3)
        return found

    monkeypatch.setattr(StorePath, "is_file", slow)
    path = place_of(R)
    assert isinstance(path, StorePath)
    lease = store_leases.StoreLease(path)
    assert looked.wait(10)
    lease.give_up()
    given_up.set()
    time.sleep(0.05)
    assert not [key for key in s3.objects if "/.writers/" in key]
