"""Paths given by users: local paths, ``file:`` addresses of local paths, and other addresses.

``Path("s3a://bucket/r")`` silently means a local directory named ``s3a:``. So every path of files that this package
reads or writes itself goes through `local_path`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from semistream.core.errors import UnsupportedPathError

__all__ = ["is_address", "local_path", "user_data"]

# Also one slash, because Path turns two into one. A single letter is a drive, not a scheme.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")


def is_address(path: str | os.PathLike[str]) -> bool:
    """Return whether a path begins with a scheme other than ``file``.

    >>> is_address("s3a://bucket/r"), is_address("file:///data/r"), is_address("/data/r"), is_address("a:b")
    (True, False, False, False)
    """
    found = _SCHEME.match(os.fspath(path))
    return found is not None and found[1].lower() != "file"


def local_path(path: str | os.PathLike[str], what: str = "path") -> Path:
    """Return the local path, or raise for an address of another store.

    Parameters
    ----------
    path
        A path, or ``file:///path``, in which ``%20`` means a space as in every URL.
    what
        What the path refers to, for the message.

    >>> str(local_path("file:///data/r%201")), str(local_path("data/r"))
    ('/data/r 1', 'data/r')
    """
    text = os.fspath(path)
    found = _SCHEME.match(text)
    if found is None:
        return Path(text)
    if found[1].lower() == "file":
        rest = text[len("file:") :]
        # file:/x, as Java writes it; file:///x; file://localhost/x
        rest = re.sub(r"^//(localhost)?(?=/)", "", rest, flags=re.IGNORECASE)
        if not rest.startswith("//"):
            return Path(unquote(rest))
        raise UnsupportedPathError(f"{what} {text!r} is on another machine; give the path at which it is mounted here")
    raise UnsupportedPathError(
        f"{what} {text!r} is an address of {found[1]!r}, but only file systems can be used here; mount the store, and "
        "give the path at which all machines see it (for a local directory of that name give its full path)"
    )


def user_data() -> Path:
    """Return the directory of this package's user data: ``$SEMISTREAM_DATA`` or the user's data directory."""
    chosen = os.environ.get("SEMISTREAM_DATA")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "semistream"
