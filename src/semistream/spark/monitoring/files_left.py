"""Number of files of a stream that no micro-batch has read yet, which Spark's file source does not report.

It is counted on this machine: files in the stream's directory minus files that the checkpoint lists as read.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import unquote, urlsplit

from semistream.core.paths import is_address

__all__ = ["FilesLeft"]

_LONG, _SHARE = 0.1, 50
"""Seconds, and share. A count that takes longer than 0.1 s is done so rarely that it uses 1/50 of the time."""


class FilesLeft:
    """Counts files that are still to be read.

    Parameters
    ----------
    path
        Directory or pattern of the stream's files.
    checkpoint
        Checkpoint of the query, whose first source is this stream.
    name_filter
        Spark's ``pathGlobFilter``: only files with matching names belong to the stream.
    """

    def __init__(self, path: str, checkpoint: Path, name_filter: str | None = None) -> None:
        self._path, self._filter = path, name_filter
        self._log = checkpoint / "sources" / "0"
        self._read: set[str] = set()
        self._taken: set[str] = set()
        self._last: int | None = None
        self._again = 0.0

    def __call__(self) -> int | None:
        """Return the number of files; None if it is unknown, for example in an object store."""
        began = time.monotonic()
        if began < self._again or is_address(self._path) or "{" in self._path:
            return self._last
        try:
            self._read_log()
            found = set(self._files())
        except OSError:
            return None
        self._taken &= found
        self._last = len(found) - len(self._taken)
        took = time.monotonic() - began
        self._again = began + _SHARE * took if took > _LONG else 0.0
        return self._last

    def _files(self) -> Iterator[str]:
        """Yield files as Spark sees them: also in subdirectories, without hidden files."""
        waiting = glob.glob(self._path)
        while waiting:
            here = waiting.pop()
            if not os.path.isdir(here):
                if self._filter is None or fnmatch(os.path.basename(here), self._filter):
                    yield here
                continue
            with os.scandir(here) as entries:
                waiting += [entry.path for entry in entries if not entry.name.startswith(("_", "."))]

    def _read_log(self) -> None:
        """Read the logs of micro-batches that were planned since the last call; a log never changes."""
        if not self._log.is_dir():
            return
        for name in sorted(os.listdir(self._log)):
            if name in self._read or not re.fullmatch(r"\d+(\.compact)?", name):
                continue
            with contextlib.suppress(FileNotFoundError):  # Spark removes logs that a compacted log replaces
                lines = (self._log / name).read_text(encoding="utf-8").splitlines()[1:]
                self._taken |= {unquote(urlsplit(json.loads(line)["path"]).path) for line in lines}
            self._read.add(name)
