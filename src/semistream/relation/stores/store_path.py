"""The place of a relation, or of one of its files, in an object store, with an interface similar to `Path`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath

from semistream.core.errors import UnsupportedPathError
from semistream.core.paths import is_address, local_path
from semistream.relation.stores.hdfs_store import HdfsStore
from semistream.relation.stores.object_store import MAKERS, SCHEMES, ObjectStatus, ObjectStore, open_store

__all__ = ["ListedPath", "Place", "StorePath", "names_in", "place_of"]

MAKERS["hdfs"] = HdfsStore
# Accept one slash after the scheme too, because Path reduces two slashes to one.
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+([^/]+)/*(.*)")


class StorePath:
    """A key of a store, or a prefix of keys. Methods do the same as those of `Path` with the same names.

    It is pickled as its address: a process that loads it uses its own credentials.

    >>> place = place_of("memory://bucket/r")
    >>> place / "manifest-00000001.json", (place / "x").exists()
    (StorePath(memory://bucket/r/manifest-00000001.json), False)
    """

    __slots__ = ("key", "store")

    def __init__(self, store: ObjectStore, key: str) -> None:
        self.store, self.key = store, key

    def __truediv__(self, below: str | PurePath) -> StorePath:
        return StorePath(self.store, f"{self.key}/{PurePath(below).as_posix()}")

    @property
    def name(self) -> str:
        """The last part."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> StorePath:
        """The path without the last part."""
        return StorePath(self.store, self.key.rpartition("/")[0])

    def with_name(self, name: str) -> StorePath:
        """Return the path with another last part."""
        return self.parent / name

    def absolute(self) -> StorePath:
        """Return the path itself."""
        return self

    def stat(self) -> ObjectStatus:
        """Return the status of the object."""
        return self.store.status(self.key)

    def read_bytes(self) -> bytes:
        """Return the object."""
        return self.store.read(self.key)

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the object as text."""
        return self.read_bytes().decode(encoding, errors)

    def is_file(self) -> bool:
        """Whether there is an object of this key."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Whether there are objects below."""
        return any(self.store.entries(self.key))

    def exists(self) -> bool:
        """Whether there is an object of this key, or an object below it."""
        return self.is_file() or self.is_dir()

    def entries(self) -> dict[str, ObjectStatus]:
        """Return the objects directly below, by name."""
        return {status.key.rpartition("/")[2]: status for status in self.store.entries(self.key)[0]}

    def below(self) -> list[tuple[StorePath, ObjectStatus]]:
        """Return all objects below, at any depth."""
        return [(StorePath(self.store, status.key), status) for status in self.store.below(self.key)]

    def __fspath__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return f"{self.store.address}/{self.key}"

    def __repr__(self) -> str:
        return f"StorePath({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorePath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return place_of, (str(self),)


class ListedPath(StorePath):
    """A place whose objects were listed. Their status is not requested again.

    Small objects below it are read with ``read``, such as the method of a local tier.
    """

    __slots__ = ("_listed", "_read", "_status")

    def __init__(
        self,
        place: StorePath,
        listed: Mapping[str, ObjectStatus],
        read: Callable[[StorePath, ObjectStatus], bytes] | None = None,
        status: ObjectStatus | None = None,
    ) -> None:
        super().__init__(place.store, place.key)
        self._listed, self._read, self._status = listed, read, status

    def __truediv__(self, below: str | PurePath) -> StorePath:
        place = super().__truediv__(below)
        status = self._listed.get(str(below))
        return place if status is None else ListedPath(place, {}, self._read, status)

    def stat(self) -> ObjectStatus:
        return super().stat() if self._status is None else self._status

    def read_bytes(self) -> bytes:
        if self._read is None or self._status is None:
            return super().read_bytes()
        return self._read(self, self._status)


Place = Path | StorePath
"""Where a relation is."""


def place_of(path: str | os.PathLike[str], what: str = "relation") -> Place:
    """Return the directory, or the place in a store, of an address; raise for any other address.

    Parameters
    ----------
    path
        A path, ``file:///path``, or ``s3://``, ``gs://``, ``az://``, ``hdfs://`` or ``memory://`` with a bucket or
        name node and a path in it.
    what
        What the place is used for, for error messages.
    """
    if isinstance(path, StorePath):
        return path
    if not is_address(path):
        return local_path(path, what)
    text = os.fspath(path)
    found = _ADDRESS.fullmatch(text)
    scheme = text.partition(":")[0].lower()
    if scheme not in SCHEMES:
        raise UnsupportedPathError(
            f"{what} {_without_user(text)!r} is an address of {scheme!r}, but only file systems and the stores "
            f"{', '.join(f'{name}://' for name in SCHEMES)} can be used here; mount it, and give the path at which all "
            "machines see it (for a local directory of that name give its full path)"
        )
    if found is None or not found[3].strip("/"):
        raise UnsupportedPathError(
            f"{what} {_without_user(text)!r} is a bucket; a relation needs its own path in the bucket, such as "
            f"{scheme}://bucket/products"
        )
    if "@" in found[2]:
        raise UnsupportedPathError(
            f"{what} {_without_user(text)!r} contains credentials; give them in the environment, and only the "
            "bucket here: addresses are written to logs and plans"
        )
    key = re.sub("/+", "/", found[3].strip("/"))
    if ".." in key.split("/") or "." in key.split("/"):
        raise UnsupportedPathError(
            f"{what} {text!r} contains '.' or '..', which keys of a store cannot have; give the path without them"
        )
    return StorePath(open_store(scheme, found[2]), key)


def names_in(place: Place) -> list[str]:
    """Return the names directly below a place."""
    if isinstance(place, Path):
        return os.listdir(place)
    objects, prefixes = place.store.entries(place.key)
    return [status.key.rpartition("/")[2] for status in objects] + [name.rpartition("/")[2] for name in prefixes]


def _without_user(text: str) -> str:
    return re.sub(r"//[^/@]*@", "//", text)
