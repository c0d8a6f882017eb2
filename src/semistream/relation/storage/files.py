"""Writes the files of a relation. Every change on disk goes through this module.

This is one small seam, so that a test can stop or fail the n-th change of a build, an update or a vacuum, and verify
that the worst result is a leftover file. An error of the system becomes a `StorageError` that says what to do. Only
errors that callers handle are passed through: a name that already exists, or does not exist.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from semistream.core.errors import StorageError
from semistream.relation.stores.store_path import Place, StorePath

__all__ = [
    "Disk",
    "WrittenFile",
    "create",
    "edit",
    "link",
    "make_directory",
    "make_directory_unflushed",
    "put_if_absent",
    "remove",
    "remove_empty_directory",
    "remove_tree",
    "rename",
    "sync_directory",
    "write_file",
]


class Disk:
    """All possible changes. Each is atomic, as far as the system guarantees it."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file for writing, and create it if the flags say so."""
        return os.open(path, flags | os.O_CLOEXEC, 0o666)

    def write(self, descriptor: int, content: memoryview) -> int:
        """Write some of ``content``; return the number of bytes written."""
        return os.write(descriptor, content)

    def truncate(self, descriptor: int, size: int) -> None:
        """Set the size of a file."""
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        """Flush the content of a file to disk."""
        os.fsync(descriptor)

    def sync_directory(self, path: Path) -> None:
        """Flush the names in a directory to disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, unless that name exists."""
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, replacing any file of that name."""
        os.rename(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        os.unlink(path)

    def mkdir(self, path: Path) -> None:
        """Make a directory."""
        os.mkdir(path)

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""
        os.rmdir(path)


disk = Disk()
"""Replaced by tests."""


class WrittenFile:
    """A file that is being written. Nothing is buffered in memory; `sync` flushes it to disk."""

    def __init__(self, path: Path, flags: int) -> None:
        self.path = path
        self._descriptor = -1
        with _told(path):
            self._descriptor = disk.open(path, flags)

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return self._descriptor < 0

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def write(self, content: bytes | bytearray | memoryview) -> int:
        """Write all of ``content`` at the current position."""
        rest = memoryview(content)
        size = rest.nbytes
        rest = rest.cast("B") if size else rest
        with _told(self.path):
            while rest.nbytes:
                rest = rest[disk.write(self._descriptor, rest) :]
        return size

    def read(self, size: int) -> bytes:
        """Read up to ``size`` bytes from the current position."""
        parts = []
        while size and (part := os.read(self._descriptor, size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def seek(self, offset: int) -> int:
        """Move to a byte position."""
        return os.lseek(self._descriptor, offset, os.SEEK_SET)

    def tell(self) -> int:
        """Return the current byte position."""
        return os.lseek(self._descriptor, 0, os.SEEK_CUR)

    def truncate(self, size: int) -> None:
        """Truncate the file, or extend it with zeros."""
        with _told(self.path):
            disk.truncate(self._descriptor, size)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def sync(self) -> None:
        """Flush everything that was written to disk."""
        with _told(self.path):
            disk.sync(self._descriptor)

    def close(self) -> None:
        """Close the file. It is not flushed unless `sync` was called."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            with _told(self.path):
                os.close(descriptor)

    def __enter__(self) -> WrittenFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


def create(path: Path) -> WrittenFile:
    """Create a new file for writing and reading."""
    return WrittenFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)


def edit(path: Path) -> WrittenFile:
    """Open an existing file, to write and read parts of it."""
    return WrittenFile(path, os.O_RDWR)


def write_file(path: Place, content: bytes | memoryview) -> None:
    """Create a file and flush it to disk, or put it into the store. Its name is flushed with its directory."""
    if isinstance(path, StorePath):
        path.store.put(path.key, content)
        return
    with create(path) as file:
        file.write(content)
        file.sync()


def link(source: Path, target: Path) -> None:
    """Give a file a second name; raise `FileExistsError` if another file has it."""
    with _told(target):
        try:
            disk.link(source, target)
        except FileExistsError:
            # On a network file system a reply can get lost and the request be sent again. Then the link is our own.
            if not (os.stat(source).st_nlink > 1 and os.path.samefile(source, target)):
                raise


def put_if_absent(path: Place, content: bytes) -> bool:
    """Create a small file atomically, and return False if its name is taken. On a disk it is not flushed."""
    if isinstance(path, StorePath):
        return path.store.put_if_absent(path.key, content)
    temporary = path.parent / f".{os.urandom(16).hex()}"
    try:
        with create(temporary) as file:
            file.write(content)
        link(temporary, path)
    except (FileExistsError, FileNotFoundError):  # another writer was first, or the directory was removed as idle
        return False
    finally:
        with contextlib.suppress(OSError):
            remove(temporary)
    return True


def rename(source: Path, target: Path) -> None:
    """Rename a file, replacing any file of that name."""
    with _told(target):
        disk.rename(source, target)


def remove(path: Place) -> bool:
    """Remove a file and return whether it existed; for a store that is not known."""
    if isinstance(path, StorePath):
        path.store.delete(path.key)
        return True
    with _told(path):
        try:
            disk.unlink(path)
        except FileNotFoundError:
            return False
    return True


def remove_tree(path: Place) -> None:
    """Remove a directory and everything in it. Links are removed, not followed."""
    if isinstance(path, StorePath):
        for one, _ in path.below():
            remove(one)
        remove(path)
        return
    with _told(path), contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(path.lstat().st_mode):
            disk.unlink(path)
            return
        for entry in list(os.scandir(path)):
            if entry.is_dir(follow_symlinks=False):
                remove_tree(Path(entry.path))
            else:
                remove(Path(entry.path))
        disk.rmdir(path)


def remove_empty_directory(path: Path) -> bool:
    """Remove a directory if it is empty, and return whether it was removed."""
    with _told(path):
        try:
            disk.rmdir(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise
            return False
    return True


def make_directory(path: Place) -> None:
    """Create a directory and its missing parents, and flush the new names to disk."""
    for parent in make_directory_unflushed(path):
        sync_directory(parent)


def make_directory_unflushed(path: Place) -> list[Path]:
    """Create a directory and its missing parents; return the directories to flush, from the top."""
    if isinstance(path, StorePath):
        return []
    missing: list[Path] = []
    at = path
    while not at.is_dir() and at != at.parent:
        missing.append(at)
        at = at.parent
    for directory in reversed(missing):
        with _told(directory), contextlib.suppress(FileExistsError):
            disk.mkdir(directory)
    return [directory.parent for directory in reversed(missing)]


def sync_directory(path: Place) -> None:
    """Flush the names in a directory to disk, so that they survive a crash. In a store they are durable already."""
    if isinstance(path, StorePath):
        return
    with _told(path):
        disk.sync_directory(path)


_REMEDIES = {
    errno.ENOSPC: "there is no room left; make some (semistream vacuum removes unneeded files) and try again",
    errno.EDQUOT: "the quota is used up; make room (semistream vacuum removes unneeded files) and try again",
    errno.EROFS: "the file system is read-only; write where it is not, or mount it otherwise",
    errno.EACCES: "this user may not write there; ask for permission, or give another path",
    errno.EPERM: "the system does not permit it; ask for permission, or give a path on a file system with hard links",
    errno.EOPNOTSUPP: "the file system cannot do it; give a path on one with hard links",
    errno.EMLINK: "the file system cannot do it; give a path on one with hard links",
    errno.EIO: "the device failed; look at it before trying again, and check with semistream inspect --check",
    errno.EFBIG: "the file system has no larger files; build with more shards",
    errno.EMFILE: "this process has too many files open; close some, or raise ulimit -n",
    errno.ENFILE: "the machine has too many files open; close some",
    errno.ESTALE: "the file server lost the file; try again",
    errno.ENAMETOOLONG: "give a shorter path",
}


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn an error of the system into a `StorageError` with a remedy."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        if error.errno not in _REMEDIES:
            raise
        raise StorageError(
            f"{path} could not be written ({os.strerror(error.errno)}): {_REMEDIES[error.errno]}",
            number=error.errno, path=path,
        ) from error  # fmt: skip
