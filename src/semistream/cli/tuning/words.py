"""The words of ``tune`` and ``plan``, explained below their tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.table import Table

from semistream.cli.console import facts, out

if TYPE_CHECKING:
    from semistream.costs import Prediction

__all__ = ["wide_enough", "words_of"]

_SPLIT_WIDTH = 100
"""Columns of a terminal in which there is room for how each join divides its memory."""

_ALWAYS = {
    "tuples/s": "rows of the stream a second that one task serves, by the cost model",
    "measured": "the same, tried on the sample for a second, kernels warm",
    "hits": "share of them that is answered from memory, without a read",
    "tuples/read": "rows of the stream that one read of R serves",
    "split": "how the memory is divided, as options of the join:",
}
_OPTIONS = {
    "cache_share": "share of the memory for rows of R that are asked for often",
    "partition_pages": "pages of R that are read at once",
    "disk_pages": "pages of R that are read at once",
    "in_flight": "reads that wait for the disk at the same time",
    "buffer_share": "share of the memory between the two phases that run in parallel",
    "pinned_pages": "pages of R that always stay in memory",
    "input_tuples": "rows of the stream that are looked up together",
    "buffer_tuples": "rows of the stream that may wait for a page",
    "max_scan": "pages that are read rather than skipped to reach the next wanted one",
}


def wide_enough() -> bool:
    """Return whether a table of predictions has room for the options of each join; else there are those of the best."""
    return out.width >= _SPLIT_WIDTH


def words_of(predictions: Iterable[Prediction], *, measured: bool = False) -> Table:
    """Return what the words of a table of predictions mean, those of its options included."""
    used = {name for found in predictions for name, value in found.options.items() if value is not None}
    table = facts()
    for word, meaning in _ALWAYS.items():
        if (word == "measured" and not measured) or (word == "split" and not used):
            continue
        table.add_row(f"[dim]{word}[/dim]", f"[dim]{meaning}[/dim]")
    for option, meaning in _OPTIONS.items():
        if option in used:
            table.add_row(f"[dim]  {option}[/dim]", f"[dim]{meaning}[/dim]")
    return table
