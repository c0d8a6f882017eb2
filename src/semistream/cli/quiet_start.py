"""Standard error while a JVM starts, which writes a few lines to it that nobody needs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from semistream.cli.console import is_expected

__all__ = ["own_stderr", "stderr_to"]


@contextlib.contextmanager
def own_stderr() -> Iterator[Console]:
    """Give a console on a copy of standard error, which stays the screen whatever becomes of the original."""
    with os.fdopen(os.dup(2), "w") as screen:
        yield Console(file=screen, highlight=False)


@contextlib.contextmanager
def stderr_to(log: Path) -> Iterator[None]:
    """Send standard error to a file, and leave it to the processes started meanwhile.

    If they do not start, what they wrote is shown; not if what went wrong is a message of ours.
    """
    saved = os.dup(2)
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    except Exception as error:
        if not is_expected(error):
            os.write(saved, log.read_bytes())
        raise
    finally:
        os.dup2(saved, 2)
        os.close(saved)
