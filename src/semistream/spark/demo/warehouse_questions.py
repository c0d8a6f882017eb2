"""Five typical warehouse queries, which DuckDB runs on the files that the stream has written."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from semistream.core.errors import MissingExtraError
from semistream.core.units import format_count
from semistream.spark.demo.star_join import OURS

__all__ = ["Answer", "ask", "loaded"]


@dataclass(frozen=True)
class Answer:
    """A question, and the bars of its answer: label, value, and the value as text."""

    question: str
    rows: list[tuple[str, float, str]]


_QUESTIONS = {
    "Revenue by category": "SELECT category, sum(amount) FROM sales WHERE category IS NOT NULL "
    "GROUP BY 1 ORDER BY 2 DESC LIMIT 5",
    "Revenue by region": "SELECT region, sum(amount) FROM sales GROUP BY 1 ORDER BY 2 DESC LIMIT 5",
    "Revenue by customer segment": "SELECT segment || ', ' || country, sum(amount) FROM sales "
    "GROUP BY 1 ORDER BY 2 DESC LIMIT 5",
    "Revenue by weekday": "SELECT weekday, sum(amount) FROM sales JOIN dates USING (date_id) "
    "GROUP BY weekday, isodow(day) ORDER BY isodow(day)",
    "Best-selling products": "SELECT name, sum(quantity) FROM sales WHERE name IS NOT NULL "
    "GROUP BY 1 ORDER BY 2 DESC LIMIT 5",
}


def loaded(folder: Path) -> list[Path]:
    """Return the files that Spark's sink has committed, without any file that is still being written."""
    while True:
        with suppress(FileNotFoundError):  # a log that was compacted just now
            return _loaded(folder)


def _loaded(folder: Path) -> list[Path]:
    found: set[Path] = set()
    for log in (folder / "_spark_metadata").glob("[0-9]*"):
        lines = log.read_text(encoding="utf-8").splitlines()[1:]  # the first is the version of the log
        found |= {Path(unquote(urlsplit(json.loads(line)["path"]).path)) for line in lines}
    return sorted(found)


def ask(directory: Path) -> list[Answer]:
    """Return the answers. Raises `MissingExtraError` if DuckDB is not installed."""
    try:
        import duckdb
    except ImportError:
        raise MissingExtraError("duckdb", "demo") from None
    with duckdb.connect() as warehouse:
        for view, files in (("sales", loaded(directory / OURS)), ("dates", sorted((directory / "dates").iterdir()))):
            listed = ", ".join("'" + str(file).replace("'", "''") + "'" for file in files)
            warehouse.execute(f"CREATE VIEW {view} AS SELECT * FROM read_parquet([{listed}])")
        return [
            Answer(question, [(str(label), float(value), format_count(float(value))) for label, value in found])
            for question, found in ((text, warehouse.execute(sql).fetchall()) for text, sql in _QUESTIONS.items())
        ]
