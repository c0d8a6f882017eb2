"""Output of all commands: results to standard output, progress and errors to standard error."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column, Table
from rich.text import Text

from semistream.core.errors import SemistreamError
from semistream.core.units import format_bytes, format_count

__all__ = [
    "COMPILING",
    "bars_of",
    "debugging",
    "errors",
    "facts",
    "in_own_words",
    "is_expected",
    "out",
    "polled",
    "print_error",
    "print_json",
    "progress",
    "step",
]

COMPILING = "compiling kernels, once for this environment …"
out = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def is_expected(error: BaseException) -> bool:
    """Return whether an error is a message to the user, not a bug in semistream."""
    return isinstance(error, SemistreamError | ValueError | OSError) or _from_spark(error)


def _from_spark(error: BaseException) -> bool:
    return type(error).__module__.startswith("pyspark.errors")


def print_error(error: BaseException) -> None:
    """Print one red message. If Spark reports the failure of a task, only our own error in it is printed."""
    text = str(error) or type(error).__name__
    if _from_spark(error):
        ours = re.search(r"semistream\.[\w.]+Error: (.+)", text)
        text = ours[1] if ours else f"Spark: {_plain(text)} (full traceback: semistream --debug ...)"
    elif isinstance(error, OSError) and not isinstance(error, SemistreamError):
        text = _of_the_system(error)
    elif not is_expected(error):
        first = next(iter(text.splitlines()), "")
        text = f"a bug in semistream: {type(error).__name__}, {first} (full traceback: semistream --debug ...)"
    errors.print(Text.assemble(("error: ", "bold red"), (in_own_words(text), "red")), soft_wrap=True)


_REMEDIES = {
    errno.EACCES: "give another path, or grant access to it",
    errno.EPERM: "give another path, or grant access to it",
    errno.EROFS: "give another path",
    errno.ENOENT: "check the path",
    errno.EISDIR: "name a file in this directory",
    errno.ENOTDIR: "give another path",
    errno.ENOSPC: "free space, or give a path on another disk",
    errno.EADDRINUSE: "give another port",
    errno.ECONNREFUSED: "start the server, or give another address",
}


def _of_the_system(error: OSError) -> str:
    """Return the message of an operating system error without its number, and what to do.

    >>> _of_the_system(PermissionError(errno.EACCES, "Permission denied", "/data"))
    '/data: permission denied; give another path, or grant access to it'
    """
    if error.errno is None or error.strerror is None:
        return str(error)
    names = [error.filename, error.filename2]
    named = " to ".join(os.fsdecode(name) for name in names if isinstance(name, str | bytes | os.PathLike))
    where = f"{named}: " if named else ""  # for an open file it is a descriptor number, which does not help the user
    remedy = _REMEDIES.get(error.errno)
    told = error.strerror[:1].lower() + error.strerror[1:] if where else error.strerror
    return f"{where}{told}" + (f"; {remedy}" if remedy else "")


def _plain(text: str) -> str:
    """Return Spark's message about a query without error class, query ids and SQLSTATE.

    >>> _plain("[STREAM_FAILED] Query [id = 1] terminated with exception: [READ] No file. SQLSTATE: K SQLSTATE: X")
    'No file.'
    """
    first = re.sub(r"^\[STREAM_FAILED\].*? terminated with exception: ", "", text.strip().splitlines()[0])
    told = re.sub(r"^\[[A-Z_.]+\] *|( *SQLSTATE: \w+)+$", "", first).strip()
    for condition, remedy in _SPARK_REMEDIES.items():
        if first.startswith(f"[{condition}"):
            return f"{told.rstrip('.')}; {remedy}"
    return told


_SPARK_REMEDIES = {
    "JAVA_GATEWAY_EXITED": "Java's message is printed above; [spark] heap may be larger than the available memory",
    "FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH": "the file's type differs from [source]: write the "
    "file's type in schema, and cast it under [source.derive]; or remove files of another type",
    "FAILED_READ_FILE": "it is damaged, or does not match [source]: remove or repair it, and run this again",
}


_PHRASES = {
    "Relation.build or spark.build": "semistream build",
    "overwrite=True": "--overwrite",
    "Relation.build": "semistream build",
    "semistream.spark.build": "semistream build",
    "semistream.update": "semistream upsert",
    "with clustered=True": "without --scattered",
    "(local=None)": "(leave out local)",
    "page_size must": "--page-size must",
    "give a larger page_size": "give a larger --page-size",
    "with a larger page_size": "with a larger --page-size",
    "or encoding='plain'": "or --encoding plain",
    "repeat this with trust=True": "repeat this with --trust",
    "older_than must": "--older-than must",
    "idle_days must": "--idle-days must",
    "rows_per_key must": "--rows-per-key must",
    "relation_rows must": "--relation-rows must",
    "row_bytes must": "--row-bytes must",
}


def in_own_words(text: str) -> str:
    """Return a message of the library with Python arguments replaced by options of the command line.

    >>> in_own_words("give another path, or overwrite=True")
    'give another path, or --overwrite'
    """
    for theirs, ours in _PHRASES.items():
        text = text.replace(theirs, ours)
    return text


class _Debugging:
    """Whether ``semistream --debug`` was given."""

    on = False


debugging = _Debugging()


def print_json(value: Any) -> None:
    """Print JSON for programs. The command prints nothing else to standard output."""
    print(json.dumps(value, indent=1))


def facts(title: str | None = None) -> Table:
    """Return an empty table of names and values."""
    table = Table(
        title=title, title_justify="left", title_style="bold", show_header=False, box=None, padding=(0, 2, 0, 0)
    )
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def bars_of(title: str, rows: Sequence[tuple[str, float, str]], width: int = 28) -> Table:
    """Return a bar chart; each row is a label, a length, and the value as text."""
    table = facts(title)
    most = max((value for _, value, _ in rows), default=0.0) or 1.0
    table.add_column(justify="right")
    for label, value, told in rows:
        eighths = round(8 * width * max(value, 0.0) / most)
        part = " ▏▎▍▌▋▊▉"[eighths % 8].strip()
        table.add_row(label, f"{'█' * (eighths // 8)}{part}", told)
    return table


class AmountColumn(ProgressColumn):
    """Completed and total amount in the task's unit: ``unit="bytes"`` or a noun."""

    def render(self, task: Any) -> Text:
        unit = task.fields.get("unit", "")
        if not unit:
            return Text("")
        show: Callable[[float], str] = format_bytes if unit == "bytes" else format_count
        of = f" of {show(task.total)}" if task.total and not task.finished else ""
        noun = "" if unit == "bytes" else f" {unit}"
        return Text(f"{show(task.completed)}{of}{noun}", style="progress.download")


def progress(*, transient: bool = False, console: Console = errors) -> Progress:
    """Return progress bars on standard error. A task may have the fields ``unit`` and ``note``."""
    return Progress(
        SpinnerColumn(finished_text="[green]✓[/green]"),
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        BarColumn(bar_width=16),
        AmountColumn(Column(no_wrap=True)),
        TextColumn("[dim]{task.fields[note]}", table_column=Column(no_wrap=True)),
        TimeElapsedColumn(),
        console=console,
        transient=transient,
    )


@contextlib.contextmanager
def step(
    bars: Progress, description: str, total: float | None = None, *, unit: str = "", note: str = ""
) -> Iterator[TaskID]:
    """Show a progress bar while the step runs. The bar is full if the step ends without an error."""
    task = bars.add_task(description, total=total, unit=unit, note=note)
    yield task
    shown = bars.tasks[bars.task_ids.index(task)]
    reached = shown.completed or shown.total or 1
    bars.update(task, total=reached, completed=reached)


@contextlib.contextmanager
def polled(look: Callable[[], None], seconds: float = 0.2) -> Iterator[None]:
    """Call ``look`` every ``seconds`` while the block runs, and once more at its end; for work without callbacks."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(seconds):
            look()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    look()
