"""The table of headlines in words: titles and cells, for every form of the report."""

from __future__ import annotations

from collections.abc import Sequence

from semistream_lab.experiments.headlines.headline import Row

__all__ = ["LEGEND", "TITLES", "cells", "reasons"]

TITLES = (
    "headline", "published", "as published, here", "equal bytes", "tuned", "today's disk", "adaptivejoin", "reproduces",
)  # fmt: skip


def cells(row: Row) -> list[str]:
    """Return the cells of a row: ``not run`` where nothing was measured, and empty where a column does not apply."""
    words = {True: "yes", False: f"no: {row.cause or 'paper'}", None: "not run"}
    headline = row.headline
    first = row.as_published or "not run"
    equal = row.equal or ("" if headline.equal == () else "not run")
    tuned = row.tuned or ("not run" if headline.tuned else "")
    today = row.today or ("not run" if headline.today else "")
    adaptive = row.adaptive or ("not run" if headline.adaptive else "")
    return [headline.text, headline.published, first, equal, tuned, today, adaptive, words[row.reproduces]]


LEGEND = (
    "Each cell is the lowest and the highest ratio that was measured, or a rate. *As published*: the paper's way of "
    "measuring, its contestants as their authors ran them, its parameters, and the prices of its machine. *Equal "
    "bytes*: the same bytes per tuple for all, in compiled code on a disk of 2010. *Tuned*: what our tuner makes of "
    "each join there. *Today's disk*: the real run, with the paper's parameters. *adaptivejoin*: its rate relative to "
    "the paper's join, both tuned, on the data of the row and at skew 1. *Reproduces*: whether the direction is the "
    "published one; figures are judged below."
)
"""How to read the table."""


def reasons(rows: Sequence[Row]) -> list[str]:
    """Return why headlines do not reproduce."""
    return [f"*{row.headline.text}* does not reproduce: {row.why}" for row in rows
            if row.reproduces is False and row.why]  # fmt: skip
