"""Paths as people give them: local ones, ``file:`` addresses of local ones, and addresses that are none.

``Path("s3a://bucket/r")`` is a directory named ``s3a:`` here, and quietly so. Whatever takes a path of files that this
package reads or writes itself takes it through `local_path`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from semistream.core.errors import UnsupportedPathError

__all__ = ["is_address", "local_path", "user_data"]

# One slash, too: that is what Path makes of two. A letter alone is no scheme but a drive.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")


def is_address(path: str | os.PathLike[str]) -> bool:
    """Return whether a path begins with a scheme other than ``file``.

    >>> is_address("s3a://bucket/r"), is_address("file:///data/r"), is_address("/data/r"), is_address("a:b")
    (True, False, False, False)
    """
    found = _SCHEME.match(os.fspath(path))
    return found is not None and found[1].lower() != "file"


def local_path(path: str | os.PathLike[str], what: str = "path") -> Path:
    """Return the local path that is meant, or raise for the address of another store.

    Parameters
    ----------
    path
        A path, or ``file:///path``, in which ``%20`` stands for a space as in every URL.
    what
        What it is the path of, for the message.

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
        f"{what} {text!r} is an address of {found[1]!r}, and only file systems can be used here; mount the store, and "
        "give the path at which all machines see it (a local directory of such a name is given with its full path)"
    )


def user_data() -> Path:
    """Return where this user's data of ours is kept: ``$SEMISTREAM_DATA`` or the user's data directory."""
    chosen = os.environ.get("SEMISTREAM_DATA")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "semistream"
