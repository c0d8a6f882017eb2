"""Where images are stored, which task builds them, and when they are removed.

::

    /dev/shm/semistream-<user>/<query>/held-<relation>/<version>/    or a local directory, if there is no room there

The first task on a machine that needs a version builds its image under a lock of ``held-<relation>``. Tasks that start
meanwhile wait for it; later ones map it without a lock. All tasks of a micro-batch read one version, so images of other
versions are removed before a new one is built; a task that has one mapped keeps it until it ends. If a builder is
killed, ``ready`` is missing, and the next one starts over. Directories of a query are removed when it ends
(`semistream.spark.joining.warm_cleanup`). Those of a batch DataFrame belong to Spark's Python daemon, and are removed
after the daemon has ended.
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

_MOST_IMAGE = (1 << 31) - 1
"""Bytes: places in an image are 32 bits wide."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT)


def open_image(
    relation: TaskRelation, pin: Pin, query: str | None, memory: int, *, dated: bool = False
) -> tuple[Image, DeviceCounters]:
    """Return the image of a version, and what was read to build it.

    The image is built if this machine has none.

    Parameters
    ----------
    relation, pin
        R and the version to read.
    query
        Spark's id of the streaming query; None for a batch DataFrame.
    memory
        Maximum bytes of the image.
    dated
        Whether R is a history, and the image is for as-of joins.
    """
    parent = os.getppid()
    owner = query or f"batch-{parent}-{started(parent)}"
    identity = _identity(relation, pin)
    kind = "dated" if dated else "held"
    below = Path(owner, f"{kind}-{hashlib.sha256(relation.identity.encode()).hexdigest()[:16]}")
    for root in filter(is_own, places()):
        with contextlib.suppress(FileNotFoundError):
            image = Image(root / below / identity)
            own_place(root, owner)  # it is in use
            return image, DeviceCounters()
    found = _built(relation, pin, owner, below, identity, memory, dated)
    sweep_once()
    return found


def _identity(relation: TaskRelation, pin: Pin) -> str:
    """Return a unique name for a version, even if the relation was rebuilt with the same version number."""
    manifest = place_of(relation.path) / manifests.name_of(pin.version)
    try:
        status = manifest.stat()
        written = [status.st_mtime_ns, status.st_size, getattr(status, "st_ino", 0)]
    except (OSError, AttributeError):
        written = []
    # on a local disk, do not trust files that may not have been flushed when the machine stopped
    shown = None if relation.layouts is None else relation.layouts.current.numbers
    text = json.dumps([relation.identity, pin.version, written, boot_id(), str(relation.schema), shown])
    return f"{pin.version:012d}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _built(
    relation: TaskRelation, pin: Pin, owner: str, below: Path, identity: str, memory: int, dated: bool
) -> tuple[Image, DeviceCounters]:
    with relation.opened(pin) as opened:
        relation.check_answers(opened, dated=dated)
        pages = opened.page_count * opened.device.frame_bytes + opened.table_bytes
        needed = image_bytes(opened.row_count, pages, dated=dated)
        room = min(memory, _MOST_IMAGE)
        if needed > room:
            raise BudgetTooSmallError(
                f"version {pin.version} of {relation.path} needs {format_bytes(needed)} to be held whole, but this "
                f"query has {format_bytes(room)} for it; restart the query from its checkpoint to read R by page, "
                "or give it more memory",
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
                    build_image(opened, target, dated=dated)
                    return Image(target), opened.counters - before
            except OSError as error:
                shutil.rmtree(root / below / identity, ignore_errors=True)
                if error.errno not in _NO_ROOM:
                    raise
                refused.append(f"{root.parent}: {error}")
        raise StorageError(
            f"this machine has no space for the {format_bytes(needed)} of {relation.path} that are to be held whole: "
            f"{'; '.join(refused)}. Set SPARK_LOCAL_DIRS to a directory with free space, or pass hold=False to join"
        )


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Lock a directory for building; wait while another process builds in it."""
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
