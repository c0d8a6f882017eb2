"""Columns computed by SQL while a table is read: ``--derive "price=replace(price, '$', '')::DOUBLE"``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from semistream.cli.relations.csv_files import InputError
from semistream.cli.relations.named_values import named_values
from semistream.core.errors import MissingExtraError

__all__ = ["parse_derived", "with_derived"]

_BATCH_ROWS = 1 << 16
_EXAMPLE = "\"price=replace(price, '$', '')::DOUBLE\""


def parse_derived(texts: Iterable[str] | None) -> dict[str, str]:
    """Read ``NAME=SQL`` pairs.

    >>> parse_derived(["price=replace(price, '$', '')", "big=qty>=10"])
    {'price': "replace(price, '$', '')", 'big': 'qty>=10'}
    """
    parts = [text.partition("=") for text in texts or ()]
    stripped = [f"{name.strip()}{equals}{sql.strip()}" for name, equals, sql in parts]
    found = named_values("--derive", stripped, "SQL", _EXAMPLE)
    if empty := [name for name, sql in found.items() if not sql]:
        raise InputError(f"--derive gives {empty[0]!r} no SQL; write it like --derive {_EXAMPLE}")
    return found


def with_derived(
    rows: pa.RecordBatchReader, derived: Mapping[str, str], columns: Sequence[str] = ()
) -> pa.RecordBatchReader:
    """Return rows with computed columns, batch by batch. If ``columns`` are named, only these are kept."""
    try:
        import duckdb
    except ImportError:
        raise MissingExtraError("duckdb", "query") from None
    names = rows.schema.names
    kept = list(columns) or [*names, *(name for name in derived if name not in names)]
    if missing := [name for name in kept if name not in names and name not in derived]:
        raise InputError(f"there is no column {missing[0]!r}; the columns are {', '.join([*names, *derived])}")
    source = _Source(rows)
    listed = ", ".join(f"({derived[name]}) AS {_quoted(name)}" if name in derived else _quoted(name) for name in kept)
    engine = duckdb.connect()
    try:
        # the value of an expression of timestamps must not depend on the machine's time zone
        engine.execute("SET TimeZone = 'UTC'")
        engine.register("source", source.reader())
        found: Any = engine.sql(f"SELECT {listed} FROM source").to_arrow_reader(_BATCH_ROWS)
    except duckdb.Error as error:
        raise _wrong(error, source, names) from error
    schema = pa.schema(
        [part if part.name in derived else rows.schema.field(part.name) for part in found.schema]
    )  # columns that are not computed keep their type

    def batches() -> Iterator[pa.RecordBatch]:
        with engine:
            try:
                for batch in found:
                    yield batch.cast(schema)
            except (duckdb.Error, pa.ArrowException, OSError) as error:
                raise _wrong(error, source, names) from error

    return pa.RecordBatchReader.from_batches(schema, batches())


class _Source:
    """Rows that DuckDB reads. Keeps an error of their reader, which DuckDB would wrap in its own error."""

    def __init__(self, rows: pa.RecordBatchReader) -> None:
        self.failed: Exception | None = None
        self._rows = rows

    def reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._rows.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._rows
        except Exception as error:
            self.failed = error
            raise


def _wrong(error: Exception, source: _Source, names: Sequence[str]) -> Exception:
    if source.failed is not None:
        return source.failed
    said = str(error).strip().splitlines()[0].rstrip(".")
    return InputError(f"--derive: {said}; the columns are {', '.join(names)}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
