"""Where images are, who builds them and when they are removed.

::

    /dev/shm/semistream-<user>/<query>/held-<relation>/<version>/    or a local directory, if there is no room there

The first task on a machine that needs a version builds its image under a lock of ``held-<relation>``; tasks that come
meanwhile wait for it, and later ones map it without a lock. All tasks of a micro-batch read one version, so images of
other versions are removed before a new one is built: a task that still has one mapped keeps it until it ends. A builder
that was killed has written no ``ready``, and the next one starts again. Directories of a query are removed when it ends
(`semistream.spark.joining.warm_cleanup`); those of a batch DataFrame belong to Spark's Python daemon, and are removed
after that has ended.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from semistream.core.errors import BudgetTooSmallError, StorageError
from semistream.core.units import format_bytes
from semistream.relation.devices.device import DeviceCounters
from semistream.relation.storage import manifest as manifests
from semistream.relation.stores.store_path import place_of
from semistream.relation.versions.pins import Pin
from semistream.spark.joining.held.image import Image, build_image, image_bytes
from semistream.spark.joining.task_relation import TaskRelation
from semistream.spark.joining.warm import boot_id, is_own, own_place, places, room_at, started
from semistream.spark.joining.warm_cleanup import sweep_once

__all__ = ["open_image"]

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT)


def open_image(relation: TaskRelation, pin: Pin, query: str | None, memory: int) -> tuple[Image, DeviceCounters]:
    """Return the image of a version, which is built if this machine has none, and what was read for it.

    Parameters
    ----------
    relation, pin
        R and the version to read.
    query
        Spark's id of the streaming query; None for a batch DataFrame.
    memory
        Bytes that the image may take at most.
    """
    parent = os.getppid()
    owner = query or f"batch-{parent}-{started(parent)}"
    identity = _identity(relation, pin)
    below = Path(owner, f"held-{hashlib.sha256(relation.path.encode()).hexdigest()[:16]}")
    for root in filter(is_own, places()):
        with contextlib.suppress(FileNotFoundError):
            image = Image(root / below / identity)
            own_place(root, owner)  # it is in use
            return image, DeviceCounters()
    found = _built(relation, pin, owner, below, identity, memory)
    sweep_once()
    return found


def _identity(relation: TaskRelation, pin: Pin) -> str:
    """Return what tells a version from any other, also from one of its number in a relation built again there."""
    manifest = place_of(relation.path) / manifests.name_of(pin.version)
    try:
        status = manifest.stat()
        written = [status.st_mtime_ns, status.st_size, getattr(status, "st_ino", 0)]
    except (OSError, AttributeError):
        written = []
    # of a local disk, files that were not flushed when the machine went down are not trusted
    text = json.dumps([relation.path, pin.version, written, boot_id()])
    return f"{pin.version:012d}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _built(
    relation: TaskRelation, pin: Pin, owner: str, below: Path, identity: str, memory: int
) -> tuple[Image, DeviceCounters]:
    with relation.opened(pin) as opened:
        relation.check_unique(opened)
        needed = image_bytes(opened.row_count, opened.page_count * opened.device.frame_bytes)
        if needed > memory:
            raise BudgetTooSmallError(
                f"version {pin.version} of {relation.path} takes {format_bytes(needed)} to be held whole, and this "
                f"query has {format_bytes(memory)} for it; start the query again from its checkpoint, and R is read "
                "by page, or give more memory",
                needed,
            )
        refused: list[str] = []
        for root in places():
            if room_at(root.parent) < needed:
                refused.append(f"{root.parent} has {format_bytes(room_at(root.parent))} free")
                continue
            try:
                own_place(root, owner)
                with _alone(root / below):
                    target = root / below / identity
                    with contextlib.suppress(FileNotFoundError):
                        return Image(target), DeviceCounters()
                    _empty(root / below)
                    target.mkdir()
                    before = opened.counters
                    build_image(opened, target)
                    return Image(target), opened.counters - before
            except OSError as error:
                shutil.rmtree(root / below / identity, ignore_errors=True)
                if error.errno not in _NO_ROOM:
                    raise
                refused.append(f"{root.parent}: {error}")
        raise StorageError(
            f"there is no room on this machine for the {format_bytes(needed)} of {relation.path} that are held whole: "
            f"{'; '.join(refused)}. Set SPARK_LOCAL_DIRS to a directory with room, or give join hold=False"
        )


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Be the only process that builds in a directory; wait for another one that does."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _empty(directory: Path) -> None:
    for old in list(directory.iterdir()):
        shutil.rmtree(old, ignore_errors=True)
