"""Explanations of the terms in the tables of ``tune`` and ``plan``, printed below them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.table import Table

from semistream.cli.console import facts, out

if TYPE_CHECKING:
    from semistream.costs import Prediction

__all__ = ["wide_enough", "words_of"]

_SPLIT_WIDTH = 100
"""Minimum width of the terminal, in characters, for the column that shows how each join splits its memory."""

_ALWAYS = {
    "tuples/s": "rows of the stream that one task processes per second, by the cost model",
    "measured": "the same, measured on the sample for one second with warm kernels",
    "hits": "share of rows that are answered from memory, without a read",
    "tuples/read": "rows of the stream that one read of R answers",
    "split": "how the memory is divided, as options of the join:",
}
_OPTIONS = {
    "cache_share": "share of the memory that caches frequently requested rows of R",
    "partition_pages": "pages of R per read",
    "disk_pages": "pages of R per read",
    "in_flight": "reads in flight at the same time",
    "buffer_share": "share of the memory that buffers tuples between the two parallel phases",
    "pinned_pages": "pages of R that always stay in memory",
    "input_tuples": "rows of the stream that are looked up together",
    "buffer_tuples": "rows of the stream that may wait for a page",
    "max_scan": "longest gap, in pages, that is read rather than skipped to reach the next requested page",
}


def wide_enough() -> bool:
    """Return whether the terminal has room for the options of each join; else only the best join's are shown."""
    return out.width >= _SPLIT_WIDTH


def words_of(predictions: Iterable[Prediction], *, measured: bool = False) -> Table:
    """Return explanations of the terms in a table of predictions, including the joins' options."""
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
