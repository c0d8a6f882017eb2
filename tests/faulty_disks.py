"""Disks on which things go wrong at the n-th change: a death, a loss of power, no room."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from semistream.relation.storage import files

Crash = Literal["killed", "power lost", "reordered", "torn"]


class Died(BaseException):
    """The process is no more: nothing catches this, and nothing that is done afterwards has an effect."""


@contextmanager
def installed(disk: files.Disk) -> Iterator[None]:
    before, files.disk = files.disk, disk
    try:
        yield
    finally:
        files.disk = before


class CountingDisk(files.Disk):
    """Counts changes, and calls `at` with the number and the name of each before it is made. Flushes nothing."""

    def __init__(self) -> None:
        self.count = 0

    def at(self, number: int, operation: str) -> None:
        pass

    def _step(self, operation: str) -> None:
        self.at(self.count, operation)
        self.count += 1

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT:
            self._step("open")
        return super().open(path, flags)

    def write(self, descriptor: int, content: memoryview) -> int:
        self._step("write")
        return super().write(descriptor, content)

    def truncate(self, descriptor: int, size: int) -> None:
        self._step("truncate")
        super().truncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        self._step("sync")

    def sync_directory(self, path: Path) -> None:
        self._step("sync_directory")

    def link(self, source: Path, target: Path) -> None:
        self._step("link")
        super().link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename")
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._step("unlink")
        super().unlink(path)

    def mkdir(self, path: Path) -> None:
        self._step("mkdir")
        super().mkdir(path)

    def rmdir(self, path: Path) -> None:
        self._step("rmdir")
        super().rmdir(path)


class KillingDisk(CountingDisk):
    """Ends this process, truly, before the n-th change."""

    def __init__(self, stop: int) -> None:
        super().__init__()
        self.stop = stop

    def at(self, number: int, operation: str) -> None:
        if number == self.stop:
            os.kill(os.getpid(), signal.SIGKILL)


class FullDisk(CountingDisk):
    """Has no room from the n-th change on, or just then; what a change would write is written by half."""

    NEEDS_ROOM = frozenset({"open", "write", "sync", "link", "mkdir", "truncate"})

    def __init__(self, stop: int, *, ever_after: bool) -> None:
        super().__init__()
        self.stop, self.ever_after = stop, ever_after
        self.refused = False

    def at(self, number: int, operation: str) -> None:
        if operation in self.NEEDS_ROOM and (number == self.stop or (self.ever_after and number > self.stop)):
            self.refused = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(self, descriptor: int, content: memoryview) -> int:
        try:
            self._step("write")
        except OSError:
            os.write(descriptor, content[: len(content) // 2])
            raise
        return os.write(descriptor, content)


@dataclass(eq=False)
class _Node:
    """A file or directory: what it holds, and what of that is certain to survive a loss of power."""

    live: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    names: dict[str, _Node] | None = None
    durable_names: dict[str, _Node] = field(default_factory=dict)


class MortalDisk(CountingDisk):
    """Dies before its n-th change, a write by half; `crash` then leaves of a directory what a crash might.

    After a loss of power no more is sure to be there than what was flushed: contents by flushing a file, names by
    flushing their directory. Of all else each piece by itself may have reached the disk or not.
    """

    def __init__(self, root: Path, stop: int | None = None) -> None:
        super().__init__()
        self.root, self.stop = root, stop
        self.dead = False
        self._tree = self._read(root)
        self._open: dict[int, _Node] = {}

    def at(self, number: int, operation: str) -> None:
        if self.dead or number == self.stop:
            self.dead = True
            raise Died

    def open(self, path: Path, flags: int) -> int:
        descriptor = super().open(path, flags)
        names = self._names(path.parent)
        if flags & os.O_CREAT:
            names[path.name] = _Node()
        self._open[descriptor] = names[path.name]
        return descriptor

    def write(self, descriptor: int, content: memoryview) -> int:
        node, begin = self._open[descriptor], os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            self._step("write")
        except Died:
            half = bytes(content[: len(content) // 2])
            node.live[begin : begin + len(half)] = half
            raise
        node.live.extend(bytes(max(0, begin - len(node.live))))
        node.live[begin : begin + len(content)] = content
        return os.write(descriptor, content)

    def truncate(self, descriptor: int, size: int) -> None:
        super().truncate(descriptor, size)
        live = self._open[descriptor].live
        live[:] = live[:size] + bytes(max(0, size - len(live)))

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        node = self._open[descriptor]
        node.durable = bytes(node.live)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        if path.is_relative_to(self.root):
            node = self._node(path)
            assert node.names is not None
            node.durable_names = dict(node.names)

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        self._names(target.parent)[target.name] = self._node(source)

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self._names(target.parent)[target.name] = self._names(source.parent).pop(source.name)

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        del self._names(path.parent)[path.name]

    def mkdir(self, path: Path) -> None:
        super().mkdir(path)
        self._names(path.parent)[path.name] = _Node(names={})

    def rmdir(self, path: Path) -> None:
        super().rmdir(path)
        del self._names(path.parent)[path.name]

    def crash(self, kind: Crash, seed: int = 0) -> None:
        """Make the directory what the crash has left of it."""
        shutil.rmtree(self.root)
        self._leave(self._tree, self.root, kind, random.Random(seed))

    def _leave(self, node: _Node, path: Path, kind: Crash, chance: random.Random) -> None:
        if node.names is None:
            path.write_bytes(self._content(node, kind, chance))
            return
        path.mkdir()
        last = next(reversed(node.names), None)
        for name in sorted(node.names.keys() | node.durable_names.keys()):
            live, durable = node.names.get(name), node.durable_names.get(name)
            chosen = {"killed": True, "power lost": False, "reordered": name == last, "torn": chance.random() < 0.5}
            left = live if chosen[kind] else durable
            if left is not None:
                self._leave(left, path / name, kind, chance)

    @staticmethod
    def _content(node: _Node, kind: Crash, chance: random.Random) -> bytes:
        live = bytes(node.live)
        if kind == "killed" or live == node.durable:
            return live
        if kind in ("power lost", "reordered"):
            return node.durable
        return chance.choice([live, node.durable, live[: chance.randrange(len(live) + 1)], bytes(len(live))])

    def _node(self, path: Path) -> _Node:
        node = self._tree
        for part in path.relative_to(self.root).parts:
            assert node.names is not None
            node = node.names[part]
        return node

    def _names(self, path: Path) -> dict[str, _Node]:
        names = self._node(path).names
        assert names is not None
        return names

    def _read(self, path: Path) -> _Node:
        if not path.is_dir():
            content = path.read_bytes()
            return _Node(bytearray(content), content)
        names = {entry.name: self._read(entry) for entry in path.iterdir()}
        return _Node(names=names, durable_names=dict(names))
