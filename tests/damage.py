"""Small relations to be damaged, what is read of them, and what damage may come to."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

import semistream
from packed_builds import packed_builds
from semistream.core.errors import SemistreamError
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests

PAGE = 512
KEYS = 70
"""Keys are the even numbers below twice that."""


def _master(first: int = 0) -> pa.Table:
    keys = np.random.default_rng(first).permutation(np.arange(first, first + KEYS)) * 2
    return pa.table({"id": keys, "name": [f"name {key} " + "x" * (key % 23) for key in keys.tolist()]})


def _clustered(path: Path) -> None:
    Relation.build(_master(), path, "id", page_size=PAGE).close()


def _scattered(path: Path) -> None:
    doubled = pa.concat_tables([_master(), _master().slice(0, 20)])
    Relation.build(doubled, path, "id", page_size=PAGE, clustered=False, shards=2).close()


def _updated(path: Path) -> None:
    Relation.build(_master(), path, "id", page_size=PAGE, fill=0.7).close()
    semistream.upsert(path, pa.table({"id": np.arange(10, 24), "name": ["changed " * 6] * 14}))
    semistream.delete(path, pa.array(np.arange(60, 90)))


def _sharded(path: Path) -> None:
    Relation.build(_master(), path, "id", page_size=PAGE, fill=0.8, shards=3).close()
    semistream.upsert(path, pa.table({"id": np.arange(0, 30), "name": ["changed " * 5] * 30}))


def _packed(path: Path) -> None:
    with packed_builds(2):
        Relation.build(_master(), path, "id", page_size=PAGE, fill=0.7).close()
    semistream.upsert(path, pa.table({"id": np.arange(10, 24), "name": ["changed " * 3] * 14}))


def _empty(path: Path) -> None:
    Relation.build(_master().slice(0, 0), path, "id", page_size=PAGE, shards=2).close()


KINDS: dict[str, Callable[[Path], None]] = {
    "clustered": _clustered, "scattered": _scattered, "updated": _updated, "sharded": _sharded, "packed": _packed,
    "empty": _empty,
}  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """All that a relation says: its rows, page after page, and what a join finds for every key."""

    scanned: tuple[tuple[object, ...], ...]
    joined: tuple[tuple[object, ...], ...]


def read(path: Path, version: int) -> Reading:
    """Read a version in both ways."""
    with Relation.open(path, version=version) as relation:
        scanned = tuple(zip(*relation.to_table().to_pydict().values(), strict=True))
        stream = pa.record_batch({"id": np.arange(-1, 2 * KEYS + 2)})
        join = semistream.create("inlj", relation, on="id", how="inner", memory="1MB")
        joined = [row for batch in join.process([stream]) for row in zip(*batch.to_pydict().values(), strict=True)]
    return Reading(scanned, tuple(sorted(joined)))


class Specimen:
    """A relation with a sound copy beside it, to be damaged and put right again."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.path, self.copy = folder / "r", folder / "copy"
        KINDS[kind](self.path)
        shutil.copytree(self.path, self.copy)
        self.sound = self.contents()
        self.versions = manifests.versions(self.path)
        self.readings = {version: read(self.path, version) for version in self.versions}

    def contents(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in self.path.iterdir() if file.is_file()}

    def restore(self) -> None:
        for name in set(self.contents()) - set(self.sound):
            (self.path / name).unlink()
        for name, content in self.sound.items():
            if not (self.path / name).exists() or (self.path / name).read_bytes() != content:
                (self.path / name).write_bytes(content)

    def outcome(self) -> str:
        """Read all versions: ``detected``, ``harmless`` or ``wrong rows``; errors that are not ours pass through."""
        detected = False
        for version in self.versions:
            try:
                if read(self.path, version) != self.readings[version]:
                    return f"wrong rows in version {version}"
            except SemistreamError:
                detected = True
        return "detected" if detected else "harmless"

    def bits(self, most: int, seed: int) -> Iterator[tuple[str, int]]:
        """Yield files and bits of them: every one of a file, or ``most`` drawn at random."""
        generator = np.random.default_rng(seed)
        for name, content in sorted(self.sound.items()):
            count = 8 * len(content)
            chosen = np.arange(count) if count <= most else np.sort(generator.choice(count, most, replace=False))
            for bit in chosen.tolist():
                yield name, bit
