"""Messages of ``semistream run`` before its first micro-batch ends, which may take a minute."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from semistream.cli.console import COMPILING

__all__ = ["first_batch_notices", "last_number", "waiting"]


@contextlib.contextmanager
def waiting(screen: Console, what: str) -> Iterator[None]:
    """Show the current activity: a spinner in a terminal, a line elsewhere."""
    if screen.is_terminal:
        with screen.status(what):
            yield
    else:
        screen.print(f"{what} …", soft_wrap=True)
        yield


def first_batch_notices(checkpoint: Path | None) -> Iterator[str]:
    """Yield messages about work that only the first micro-batch does."""
    begun, done = last_number(checkpoint, "offsets"), last_number(checkpoint, "commits")
    if begun is not None and begun != done:
        yield f"replaying batch {begun}: it was started before the last stop, but not committed …"
    elif begun is not None:
        yield f"continuing with batch {begun + 1} …"
    if not _kernels_are_kept():
        yield f"Spark's workers are {COMPILING}"


def last_number(checkpoint: Path | None, part: str) -> int | None:
    """Return the newest micro-batch in ``offsets`` or ``commits`` of a checkpoint; None if there is none."""
    if checkpoint is None or not (checkpoint / part).is_dir():
        return None
    return max((int(one.name) for one in (checkpoint / part).iterdir() if one.name.isdigit()), default=None)


def _kernels_are_kept() -> bool:
    """Return whether the kernels that read rows of R are already compiled in this environment."""
    from semistream.core.kernels.kernel_cache import are_kept
    from semistream.structures.hot import row_stream

    return are_kept(row_stream)
