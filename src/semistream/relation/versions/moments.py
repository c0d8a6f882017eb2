"""Finds the micro-batch of a task that knows only the time of its batch.

A task of a streaming query knows the query and the batch, unless the query's ``foreachBatch`` started it from its own
thread, or over Spark Connect. The time of the batch is in the plan and reaches all tasks; replays have the same time.
So the first task of a batch records, for that time, the name under which the batch is pinned. All other tasks use it.

::

    .pins/moments/m1794767337481-<join>   "aef94f3e-… 12"     pin of batch 12 of that query
                                          "at-<join> 1794…"   a thread was first: a name derived from the time
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from pathlib import Path

from semistream.relation.storage import files
from semistream.relation.stores.store_path import Place, StorePath, names_in
from semistream.relation.versions.pins import SHARED

__all__ = ["MOMENTS", "keep_under", "name_of_batch"]

MOMENTS = "moments"
_NOTE = re.compile(r"([A-Za-z0-9-]+) (\d+)")
_SWEEP_EVERY = 64  # one note in this many triggers the removal of old notes
_KEPT_SECONDS = 3600.0  # minimum age, in seconds, of a note that is removed


def name_of_batch(
    places: Sequence[Place], join: str, moment: int, query: str | None = None, batch: int | None = None
) -> tuple[str, int]:
    """Return the query and batch under which the version of a micro-batch is pinned.

    Parameters
    ----------
    places
        Directories of pins. Notes are searched in all of them and written to the last.
    join
        Identifies a join among those that may run at the same time: letters and digits.
    moment
        The time of the micro-batch, in milliseconds.
    query, batch
        Spark's query id and batch id, if the task knows them.
    """
    if query is not None and batch is not None and any((place / query / f"{batch:012d}").is_file() for place in places):
        return query, batch
    own = (query, batch) if query is not None and batch is not None else (f"{SHARED}{join}", moment)
    name = f"m{moment:015d}-{join}"
    while True:
        for place in places:
            if (found := _read(place / MOMENTS / name)) is not None:
                return found
        if _write(places[-1] / MOMENTS / name, own):
            if moment % _SWEEP_EVERY == 0:
                _sweep(places[-1])
            return own


def keep_under(places: Sequence[Place], found: tuple[str, int], own: tuple[str, int]) -> None:
    """Store a pin under the query's own name too, so that it is kept as long as the query needs it."""
    for place in places:
        pin, kept = place / found[0] / f"{found[1]:012d}", place / own[0] / f"{own[1]:012d}"
        if found == own:
            continue
        with contextlib.suppress(OSError):  # it exists, or there is no room: only the note is essential
            if isinstance(pin, StorePath):
                files.put_if_absent(kept, pin.read_bytes())
            elif pin.exists() and isinstance(kept, Path):
                files.make_directory_unflushed(kept.parent)
                files.link(pin, kept)


def _read(note: Place) -> tuple[str, int] | None:
    try:
        found = _NOTE.fullmatch(note.read_text(errors="replace"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if found is None:  # left by a power failure before the note was flushed: no batch ended with it
        with contextlib.suppress(OSError):
            files.remove(note)
        return None
    return found[1], int(found[2])


def _write(note: Place, name: tuple[str, int]) -> bool:
    """Record a name; return False if another task was first."""
    try:
        files.make_directory_unflushed(note.parent)
    except (FileExistsError, FileNotFoundError):  # the directory above was removed as idle
        return False
    return files.put_if_absent(note, f"{name[0]} {name[1]}".encode())


def _sweep(place: Place) -> None:
    """Remove notes of batches whose pins have been removed."""
    folder = place / MOMENTS
    for name in [name for name in names_in(folder) if name.startswith("m")]:
        note = folder / name
        with contextlib.suppress(OSError):
            if time.time() - note.stat().st_mtime > _KEPT_SECONDS:
                found = _read(note)
                if found is None or not (place / found[0] / f"{found[1]:012d}").exists():
                    files.remove(note)
