"""HDFS as an object store, through `hdfs-native`, which needs neither Java nor Hadoop on this machine.

Files are objects. We never overwrite a file, so its time and size identify its content. To put a file if absent, it is
written under a temporary name and renamed: of several renames to one name, the name node lets only one succeed.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from semistream.core.errors import MissingExtraError, StorageError
from semistream.relation.stores.object_store import ObjectStatus, ObjectStore, StoreUnavailableError

if TYPE_CHECKING:
    import hdfs_native

__all__ = ["HdfsStore"]

_PART_BYTES = 8 << 20  # bytes read from the local file at a time
_ASIDE = ".unfinished"
_FORBIDDEN = "AccessControlException"
_KEPT_OPEN = 64  # maximum files kept open for reading


class HdfsStore(ObjectStore):
    """The files of a name node, or name service.

    The environment identifies the user, by ``HADOOP_USER_NAME`` or Kerberos. ``HADOOP_CONF_DIR`` holds the settings.
    """

    at_once = 1

    def __init__(self, authority: str) -> None:
        try:
            import hdfs_native
        except ImportError:
            raise MissingExtraError("hdfs-native", "hdfs") from None
        address = f"hdfs://{authority}"
        try:
            client = hdfs_native.Client(address)
        except Exception as error:
            raise StorageError(
                f"{address} cannot be opened: {_said(error)}; check the address, HADOOP_CONF_DIR and Kerberos"
            ) from None
        super().__init__(address, client)
        self._options = hdfs_native.WriteOptions
        self._readers: OrderedDict[str, Any] = OrderedDict()
        self._opening = Lock()

    def read(self, key: str) -> bytes:
        with self._said(key, "read"), self._client.read(_path(key)) as file:
            return bytes(file.read())

    def read_range(self, key: str, start: int, length: int) -> memoryview:
        with self._said(key, "read"):
            file = self._reader(key)
            length = min(length, len(file) - start)
            return memoryview(file.read_range(start, length) if length > 0 else b"")

    def read_ranges(self, key: str, starts: Sequence[int], lengths: Sequence[int]) -> list[memoryview]:
        return [self.read_range(key, start, length) for start, length in zip(starts, lengths, strict=True)]

    def status(self, key: str) -> ObjectStatus:
        with self._said(key, "read"):
            found = self._client.get_file_info(_path(key))
        if found.isdir:
            raise FileNotFoundError(errno.ENOENT, "not a file but a directory", self._place(key))
        return _status(found)

    def entries(self, prefix: str) -> tuple[list[ObjectStatus], list[str]]:
        found = self._listed(prefix, recursive=False)
        folders = [_key(one.path) for one in found if one.isdir]
        return [_status(one) for one in found if not one.isdir], [key for key in folders if not key.endswith(_ASIDE)]

    def below(self, prefix: str) -> list[ObjectStatus]:
        return [_status(one) for one in self._listed(prefix, recursive=True) if not one.isdir]

    def put(self, key: str, content: bytes | memoryview) -> None:
        self._move(self._written_aside(key, [content]), key, overwrite=True)

    def put_if_absent(self, key: str, content: bytes) -> bool:
        aside = self._written_aside(key, [content])
        try:
            self._move(aside, key, overwrite=False)
        except FileExistsError:
            return self._is(key, content)
        except (FileNotFoundError, StoreUnavailableError):  # the rename may have succeeded, and the reply been lost
            if self._is(key, content):
                return True
            raise
        return True

    def upload(self, key: str, file: Path) -> None:
        with open(file, "rb") as source:
            aside = self._written_aside(key, iter(lambda: source.read(_PART_BYTES), b""))
        self._move(aside, key, overwrite=True)

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._said(key, "removed"):
            self._client.delete(_path(key))

    def remove_unfinished(self, prefix: str, before: float) -> list[str]:
        try:
            with self._said(prefix, "listed"):
                found = [one for one in self._client.list_status(_path(prefix), True) if f"/{_ASIDE}/" in one.path]
        except FileNotFoundError:
            return []
        left = [_key(one.path) for one in found if not one.isdir and one.modification_time / 1e3 < before]
        for key in left:
            self.delete(key)
        return left

    # -- inside -------------------------------------------------------------------------------------------

    def _move(self, aside: str, key: str, *, overwrite: bool) -> None:
        """Rename a temporary file to its final name, or remove it on failure."""
        try:
            with self._said(key, "written"):
                self._client.rename(aside, _path(key), overwrite)
        except BaseException:
            self._discard(aside)
            raise

    def _discard(self, aside: str) -> None:
        with contextlib.suppress(Exception):  # the original error matters more; vacuum will remove the file
            self._client.delete(aside)

    def _is(self, key: str, content: bytes) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return self.read(key) == content
        return False

    def _reader(self, key: str) -> Any:
        """Return an open file. Recently used files stay open, because opening asks the name node for the blocks."""
        with self._opening:
            file = self._readers.pop(key, None) or self._client.read(_path(key))
            self._readers[key] = file
            while len(self._readers) > _KEPT_OPEN:
                self._readers.popitem(last=False)
            return file

    def _written_aside(self, key: str, parts: Any) -> str:
        """Write a complete file under a temporary name next to its place; return its path."""
        folder = f"{_path(key).rpartition('/')[0]}/{_ASIDE}"
        aside = f"{folder}/{os.urandom(12).hex()}"
        try:
            with self._said(key, "written"):
                self._client.mkdirs(folder, create_parent=True)
                with self._client.create(aside, self._options(overwrite=True)) as file:
                    for part in parts:
                        file.write(bytes(part))
        except BaseException:
            self._discard(aside)
            raise
        with self._opening:
            self._readers.pop(key, None)
        return aside

    def _listed(self, prefix: str, *, recursive: bool) -> list[hdfs_native.FileStatus]:
        try:
            with self._said(prefix, "listed"):
                found = list(self._client.list_status(_path(prefix), recursive))
        except FileNotFoundError:
            return []
        # For a file, the list contains the file itself.
        return [one for one in found if _key(one.path) != prefix and f"/{_ASIDE}/" not in one.path]

    @contextlib.contextmanager
    def _said(self, key: str, done: str) -> Iterator[None]:
        """Turn an error of HDFS into an error with a remedy."""
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "no such file", self._place(key)) from None
        except FileExistsError:
            raise FileExistsError(errno.EEXIST, "the file already exists", self._place(key)) from None
        except StorageError:
            raise
        except Exception as error:
            if _FORBIDDEN in str(error) or isinstance(error, PermissionError):
                raise self._forbidden(key, done, error) from None
            raise StoreUnavailableError(
                f"{self._place(key)} could not be {done}: {_said(error)}; check that the name node and data nodes "
                "can be reached from here", number=errno.EIO, path=self._place(key),
            ) from None  # fmt: skip


def _path(key: str) -> str:
    return f"/{key}"


def _key(path: str) -> str:
    return path.lstrip("/")


def _status(found: hdfs_native.FileStatus) -> ObjectStatus:
    return ObjectStatus(_key(found.path), found.length, found.modification_time / 1e3, "")


def _said(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
