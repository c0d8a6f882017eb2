"""A crash before every single change of the disk: the relation is at the old version or the new one, and whole.

Four kinds of crash: a killed process; a loss of power that only what was flushed survives; one that the name made last
survives too; and one of which of all that was not flushed each piece by chance survives, in part, as zeros, or not.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import semistream
from faulty_disks import CountingDisk, Crash, Died, FullDisk, KillingDisk, MortalDisk, installed
from packed_builds import packed_builds
from semistream.core.errors import NotARelationError, StorageError
from semistream.relation.damage.repair import repair
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.relation.versions import leases
from semistream.relation.versions.leases import WRITERS

pytestmark = pytest.mark.slow

Content = list[tuple[int, str]]
KINDS: list[Crash] = ["killed", "power lost", "reordered", "torn"]
KEYS = 40


def table(first: int, keys: int, text: str) -> pa.Table:
    return pa.table({"id": range(first, first + keys), "text": [f"{text} {key}" * 3 for key in range(keys)]})


def content(path: Path, version: int | None = None) -> Content:
    with Relation.open(path, version=version) as relation:
        got = relation.to_table()
        for columns in relation.secondary_indexes:
            with relation.by(columns) as index:
                assert index.to_table().sort_by("id") == got.sort_by("id"), "an index is in step or does not exist"
    return sorted(zip(got["id"].to_pylist(), got["text"].to_pylist(), strict=True))


def rows_of(*tables: pa.Table) -> Content:
    rows = {}
    for one in tables:
        rows.update(zip(one["id"].to_pylist(), one["text"].to_pylist(), strict=True))
    return sorted(rows.items())


OLD = rows_of(table(0, KEYS, "first"), table(5, 10, "second"))
BUILD = {"page_size": 512, "shards": 2}


@dataclass(frozen=True)
class Case:
    """Something that writes, the content that it leads to, and what it finds."""

    run: Callable[[Path], object]
    new: Content
    prepare: Callable[[Path], object] = lambda path: None
    first: bool = False


def damage(path: Path) -> None:
    """Flip a byte in a page and in the index of the newest version's first shard; keep a copy."""
    shutil.copytree(path, path.parent / "copy")
    shard = manifests.load(path).shards[0]
    for name in (shard.pages_file, shard.index_file):
        whole = bytearray((path / name).read_bytes())
        whole[-20] ^= 0xFF
        whole[20] ^= 0xFF
        (path / name).write_bytes(whole)


def litter(path: Path) -> None:
    """Leave what a killed build leaves."""
    writer = leases.Writer(path).__enter__()
    (path / f".sorting-{writer.run}-0").mkdir()
    (path / f".sorting-{writer.run}-0" / "run-00000.arrow").write_bytes(b"x" * 100)
    (path / f"shard-0000-{writer.run}.pages").write_bytes(b"x" * 512)
    writer._ended.set()
    assert writer._file is not None
    writer._file.close()


def add_index(path: Path) -> None:
    with Relation.open(path) as relation:
        relation.add_index("text")


def evolve(path: Path) -> None:
    """Replace the column of texts by another one of the same name."""
    with Relation.open(path) as relation:
        relation.evolve(drop=["text"], add={"text": pa.string()}, defaults={"text": "fresh"})


def upsert_wider(path: Path) -> None:
    """Upsert texts of a wider type, which R gets too."""
    wide = pa.schema([("id", pa.int64()), ("text", pa.large_string())])
    with Relation.open(path) as relation:
        relation.upsert(table(30, 20, "new").cast(wide), evolve=True)


def packed(run: Callable[[Path], object]) -> Callable[[Path], object]:
    """Return what builds and compacts packed rows."""

    def run_packed(path: Path) -> None:
        with packed_builds(3):  # of the texts, some are words of a table and the others escaped
            run(path)

    return run_packed


CASES = {
    "first build": Case(
        lambda path: Relation.build(table(0, KEYS, "new"), path, "id", **BUILD).close(),
        rows_of(table(0, KEYS, "new")), first=True,
    ),
    "overwrite, spilling": Case(
        lambda path: Relation.build(
            table(0, KEYS, "new").to_batches(max_chunksize=20), path, "id", overwrite=True, memory=500, **BUILD
        ).close(),
        rows_of(table(0, KEYS, "new")),
    ),
    "overwrite, not clustered": Case(
        lambda path: Relation.build(
            table(0, KEYS, "new"), path, "id", overwrite=True, page_size=512, clustered=False
        ).close(),
        rows_of(table(0, KEYS, "new")),
    ),
    "upsert": Case(
        lambda path: semistream.upsert(path, table(30, 20, "new")),
        rows_of(table(0, KEYS, "first"), table(5, 10, "second"), table(30, 20, "new")),
    ),
    "delete": Case(lambda path: semistream.delete(path, pa.array(range(12))), OLD[12:]),
    "compact": Case(semistream.compact, OLD),
    "add an index": Case(add_index, OLD),
    "upsert, with an index": Case(
        lambda path: semistream.upsert(path, table(30, 20, "new")),
        rows_of(table(0, KEYS, "first"), table(5, 10, "second"), table(30, 20, "new")), add_index,
    ),
    "evolve": Case(evolve, [(key, "fresh") for key, _ in OLD]),
    "upsert that evolves": Case(
        upsert_wider, rows_of(table(0, KEYS, "first"), table(5, 10, "second"), table(30, 20, "new"))
    ),
    "compact after evolve": Case(semistream.compact, [(key, "fresh") for key, _ in OLD], evolve),
    "build, packed": Case(
        packed(lambda path: Relation.build(table(0, KEYS, "new"), path, "id", overwrite=True, **BUILD).close()),
        rows_of(table(0, KEYS, "new")),
    ),
    "compact, packed": Case(packed(semistream.compact), OLD),
    "upsert, packed": Case(
        lambda path: semistream.upsert(path, table(30, 20, "new")),
        rows_of(table(0, KEYS, "first"), table(5, 10, "second"), table(30, 20, "new")), packed(semistream.compact),
    ),
    "vacuum": Case(
        lambda path: semistream.vacuum(path, older_than=-1), OLD, lambda path: (semistream.compact(path), litter(path))
    ),
    "repair": Case(lambda path: repair(path, copy=path.parent / "copy"), OLD, damage),
}  # fmt: skip
PACKED = [case for name, case in CASES.items() if name.endswith(", packed")]


@pytest.fixture(autouse=True)
def quick_disk() -> Iterator[None]:
    with installed(CountingDisk()):
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A relation of two versions, of which the second has files of changed pages."""
    root = tmp_path_factory.mktemp("base")
    Relation.build(table(0, KEYS, "first"), root / "r", "id", **BUILD).close()
    semistream.upsert(root / "r", table(5, 10, "second"))
    return root


def started(case: Case, base: Path, root: Path) -> Path:
    """Make a copy of the relation as the case finds it, which is prepared once; return its path."""
    prepared = root.with_name("prepared")
    if not prepared.exists():
        if case.first:
            prepared.mkdir()
        else:
            shutil.copytree(base, prepared)
            case.prepare(prepared / "r")
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(prepared, root)
    return root / "r"


def changes(case: Case, base: Path, root: Path) -> int:
    """Return how many changes the disk sees."""
    path = started(case, base, root)
    disk = CountingDisk()
    with installed(disk):
        case.run(path)
    assert content(path) == case.new
    assert (manifests.load(path).packing is not None) == (case in PACKED)
    return disk.count


def on_disk(root: Path) -> frozenset[tuple[str, bytes | None]]:
    """Return the names and contents of all that is there: with equal ones, `check_after` has the same outcome."""
    return frozenset(
        (str(entry.relative_to(root)), entry.read_bytes() if entry.is_file() else None) for entry in root.rglob("*")
    )


def check_after(path: Path, case: Case, *, damaged: bool, done: bool = False) -> None:
    """Every version that is there is whole; vacuum leaves nothing but versions; the next writer succeeds."""
    try:
        newest = manifests.latest(path)
        if newest is None:
            raise NotARelationError(f"no version at {path}")
    except NotARelationError:
        assert case.first, "a relation is gone"
        assert not done, "what was committed is gone"
        if (path / WRITERS).is_dir():
            semistream.vacuum(path, older_than=-1)
            assert os.listdir(path) == [WRITERS]
        Relation.build(table(0, 3, "again"), path, "id").close()
        assert len(content(path)) == 3
        return
    if damaged:
        repair(path, copy=path.parent / "copy")
    state = content(path)
    assert state == case.new if done else state in ([case.new] if case.first else [OLD, case.new])
    for number in manifests.versions(path):
        assert content(path, number) in (OLD, case.new, rows_of(table(0, KEYS, "first")))
    semistream.vacuum(path, keep=manifests.versions(path), older_than=-1)
    named = {name for number in manifests.versions(path) for name in manifests.load(path, number).files}
    wanted = named | {manifests.name_of(number) for number in manifests.versions(path)} | {WRITERS}
    assert set(os.listdir(path)) == wanted, "vacuum left something"
    assert os.listdir(path / WRITERS) == []
    if not manifests.load(path).clustered:
        assert semistream.compact(path) == newest + 1
        assert content(path) == state
        return
    assert semistream.upsert(path, table(3, 1, "after")) == newest + 1
    assert content(path) == rows_of(pa.table(dict(zip(("id", "text"), zip(*state, strict=True), strict=True))),
                                    table(3, 1, "after"))  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_a_crash_before_every_change(tmp_path, base, name):
    case, root = CASES[name], tmp_path / "work"
    count = changes(case, base, root)
    assert count > 4
    checked = set()
    for stop in range(count + 1):
        path = started(case, base, root)
        disk = MortalDisk(root, stop)
        done = False
        with installed(disk):
            try:
                case.run(path)
                done = True
            except Died:
                pass
        for kind in KINDS:  # each replaces the directory by what it leaves of this one run
            disk.crash(kind, seed=stop)
            if (found := (done, on_disk(root))) in checked:
                continue
            checked.add(found)
            try:
                check_after(path, case, damaged=name == "repair", done=done)
            except BaseException as error:
                raise AssertionError(f"{kind} before change {stop} of {count}: {sorted(os.listdir(root))}") from error
    assert len(checked) > 4


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_no_room_for_any_change(tmp_path, base, name):
    """An error that says what and what to do; nothing is damaged, and nothing is left that vacuum does not remove."""
    case, root = CASES[name], tmp_path / "work"
    count = changes(case, base, root)
    refusals = 0
    for stop in range(count):
        for ever_after in (False, True):
            path = started(case, base, root)
            before = {file.name for file in path.iterdir()} if path.exists() else set()
            disk, told = FullDisk(stop, ever_after=ever_after), ""
            with installed(disk):
                try:
                    case.run(path)
                except StorageError as error:
                    told = str(error)
            where = f"no room for change {stop} of {count}, ever after: {ever_after}"
            if told:
                refusals += 1
                assert str(root) in told, where
                assert "no room left; make some (semistream vacuum" in told, where
            else:
                assert not disk.refused or name in ("vacuum", "repair") or content(path) == case.new, where
            try:
                if told and "is committed, but may not survive" not in told and name not in ("vacuum", "repair"):
                    left = {file.name for file in path.iterdir()} if path.exists() else set()
                    assert left - {WRITERS} <= before, "a writer that fails leaves nothing"
                if path.exists():
                    with installed(FullDisk(0, ever_after=True)):  # a full disk is where vacuum is wanted most
                        semistream.vacuum(path, keep=manifests.versions(path))
                check_after(path, case, damaged=name == "repair")
            except BaseException as error:
                raise AssertionError(f"{where}: {told}") from error
    assert refusals > 4 or name == "vacuum"


@pytest.mark.parametrize("name", ["overwrite, spilling", "upsert", "vacuum", "compact, packed"])
def test_truly_killed(tmp_path, base, name):
    case, root = CASES[name], tmp_path / "work"
    count = changes(case, base, root)
    for stop in range(1, count, max(1, count // 5)):
        path = started(case, base, root)
        child = os.fork()
        if child == 0:
            with installed(KillingDisk(stop)):
                try:
                    case.run(path)
                finally:
                    os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
        semistream.vacuum(path, keep=manifests.versions(path))
        stray = [file.name for file in path.glob(".[sm]*")]
        assert stray == [], "what a killed writer leaves goes at once"
        check_after(path, case, damaged=False)
