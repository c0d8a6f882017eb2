"""How many files of a stream no micro-batch has taken yet, which Spark's source of files does not tell.

Counted on this machine: files where the stream comes from, less those that the checkpoint has down as taken.
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
"""A look that takes longer is not taken at every micro-batch, but so seldom that it has one fiftieth of the time."""


class FilesLeft:
    """Counts files that are still to be taken.

    Parameters
    ----------
    path
        Where the stream's files are: a directory, or a pattern.
    checkpoint
        That of the query, which has this stream as its first source.
    name_filter
        Spark's ``pathGlobFilter``: only files with such names are the stream's.
    """

    def __init__(self, path: str, checkpoint: Path, name_filter: str | None = None) -> None:
        self._path, self._filter = path, name_filter
        self._log = checkpoint / "sources" / "0"
        self._read: set[str] = set()
        self._taken: set[str] = set()
        self._last: int | None = None
        self._again = 0.0

    def __call__(self) -> int | None:
        """Return how many; None where that cannot be said, as of a store."""
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
        """Yield files as Spark sees them: those under a directory too, and no hidden ones."""
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
        """Take note of files of micro-batches that were planned since the last look; a log is never changed."""
        if not self._log.is_dir():
            return
        for name in sorted(os.listdir(self._log)):
            if name in self._read or not re.fullmatch(r"\d+(\.compact)?", name):
                continue
            with contextlib.suppress(FileNotFoundError):  # logs that a compact one replaces are removed
                lines = (self._log / name).read_text(encoding="utf-8").splitlines()[1:]
                self._taken |= {unquote(urlsplit(json.loads(line)["path"]).path) for line in lines}
            self._read.add(name)
