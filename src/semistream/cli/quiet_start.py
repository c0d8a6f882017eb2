"""Standard error while a JVM starts: hides the lines that the JVM writes."""

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
    """Yield a console on a copy of standard error. It still writes to the screen if the original is redirected."""
    with os.fdopen(os.dup(2), "w") as screen:
        yield Console(file=screen, highlight=False)


@contextlib.contextmanager
def stderr_to(log: Path) -> Iterator[None]:
    """Redirect standard error to a file; processes that are started meanwhile keep writing to that file.

    If the block fails, the file's content is shown, unless the error is an expected one with its own message.
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
