"""CSV files as batches. Spark's reader follows the same rules (`semistream.spark.pipeline.csv_tables`).

An empty field is NULL, whatever the column's type. A quoted empty field is an empty text; it is not a valid number or
date. No other text is NULL. A quoted value may span several lines; its line breaks become line feeds. A timestamp
without a zone is in UTC. A value that does not fit raises an error: nothing is truncated, rounded or left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from semistream.core.errors import SemistreamError

__all__ = ["CSV_NAMES", "CsvRules", "InputError", "Part", "csv_batches", "csv_schema", "first_not_integer"]

CSV_NAMES = {".csv": None, ".tsv": None, ".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
"""Suffixes of CSV file names, with their compression."""

Part = tuple[pa.RecordBatch, float]
"""A batch, and the share of its file that has been read after it."""

_ZONE = r":\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"
_ICONV = "convert the file, for example with iconv -f latin1 -t utf-8"
_SHORT_INTEGER = r"^\s*[+-]?\d{1,18}\s*$"  # fits into an int64
_LONG_INTEGER = re.compile(r"\s*[+-]?0{0,99}[0-9]{19}\s*")  # may fit; longer ones do not
_COLUMN = re.compile(r"In CSV column #(\d+): ")


class InputError(SemistreamError, ValueError):
    """A file that cannot be read as a table, or that does not match the other files of the table."""


@dataclass(frozen=True)
class CsvRules:
    """How the texts of CSV files are read.

    Parameters
    ----------
    types
        Types of columns that must not be guessed, for example of a key with leading zeros.
    nulls
        Texts that mean NULL if they are not quoted, in addition to an empty field.
    """

    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    nulls: tuple[str, ...] = ()

    def convert(self) -> pyarrow.csv.ConvertOptions:
        texts = dict.fromkeys(self.instants, pa.string())  # Arrow would refuse timestamps without a zone
        return pyarrow.csv.ConvertOptions(
            column_types={**self.types, **texts}, null_values=["", *self.nulls], strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )  # fmt: skip

    @property
    def instants(self) -> dict[str, pa.DataType]:
        return {name: kind for name, kind in self.types.items() if pa.types.is_timestamp(kind) and kind.tz}


def csv_batches(path: Path, rules: CsvRules) -> Iterator[Part]:
    """Yield the rows of a file. Unknown column types are guessed from the start of the file."""
    try:
        yield from _batches(path, rules)
    except pa.ArrowInvalid as error:
        raise InputError(f"cannot read {path}: {_explained(path, rules, error)}") from error


def csv_schema(path: Path, rules: CsvRules) -> pa.Schema:
    """Return the columns of a file that has no rows."""
    with open(path, "rb") as raw, _opened(raw, path, rules.convert()) as reader:
        _check_names(path, _names(path, reader))
        return pa.schema([part.with_type(rules.types.get(part.name, part.type)) for part in reader.schema])


def first_not_integer(path: Path, rules: CsvRules, column: str) -> tuple[int, str] | None:
    """Return the row number and text of the first value of a column that is not an int64. The header is row 1."""
    texts = CsvRules({**rules.types, column: pa.string()}, rules.nulls)
    before = 1
    for batch, _ in csv_batches(path, texts):
        values = batch.column(column)
        for row in pc.indices_nonzero(pc.invert(pc.match_substring_regex(values, _SHORT_INTEGER))).to_pylist():
            text = values[row].as_py()
            if not (_LONG_INTEGER.fullmatch(text) and -(1 << 63) <= int(text) < 1 << 63):
                return before + row + 1, text
        before += batch.num_rows
    return None


def _header(path: Path) -> list[str]:
    with open(path, "rb") as raw, _opened(raw, path, pyarrow.csv.ConvertOptions(null_values=[])) as reader:
        return list(reader.schema.names)


def _opened(
    raw: BinaryIO, path: Path, convert: pyarrow.csv.ConvertOptions, *, threads: bool = True
) -> pyarrow.csv.CSVStreamingReader:
    codec = CSV_NAMES[path.suffix.lower()]
    return pyarrow.csv.open_csv(
        pa.CompressedInputStream(raw, codec) if codec else raw,
        pyarrow.csv.ReadOptions(use_threads=threads),
        pyarrow.csv.ParseOptions(delimiter="\t" if ".tsv" in path.suffixes else ",", newlines_in_values=True),
        convert,
    )


def _batches(path: Path, rules: CsvRules, *, threads: bool = True) -> Iterator[Part]:
    size = max(1, path.stat().st_size)
    with open(path, "rb") as raw, _opened(raw, path, rules.convert(), threads=threads) as reader:
        _check_names(path, _names(path, reader))
        _check_texts(path, reader.schema, rules)
        before = 1  # the header
        for batch in reader:
            yield _converted(batch, rules.instants, before), raw.tell() / size
            before += batch.num_rows


def _names(path: Path, reader: pyarrow.csv.CSVStreamingReader) -> list[str]:
    try:
        return list(reader.schema.names)
    except UnicodeDecodeError:
        raise InputError(f"cannot read {path}: the names of its columns are not in UTF-8; {_ICONV}") from None


def _check_names(path: Path, names: list[str]) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{path} has two columns called {twice[0]!r}; give each its own name")
    if len(names) == 1 and (other := re.search("[;|\t]", names[0])):
        raise InputError(
            f"the first line of {path} names one column, {names[0]!r}: its values seem to be separated by "
            f"{other[0]!r}. Separate them by commas, or by tabs in a file that ends in .tsv"
        )


def _check_texts(path: Path, schema: pa.Schema, rules: CsvRules) -> None:
    """Raise for texts in another encoding, which Arrow would read as bytes."""
    for part in schema:
        if pa.types.is_binary(part.type) and part.name not in rules.types:
            raise InputError(f"cannot read {path}: column {part.name!r} {_not_text(part.name)}")


def _not_text(name: str) -> str:
    return f"is not in UTF-8; {_ICONV}, or keep its bytes as they are: --type {name}=binary"


def _converted(batch: pa.RecordBatch, instants: Mapping[str, pa.DataType], before: int) -> pa.RecordBatch:
    for number, part in enumerate(batch.schema):
        column = batch.column(number)
        if (kind := instants.get(part.name)) is not None:
            batch = batch.set_column(number, part.with_type(kind), _instants(column, kind, number, before))
        elif pa.types.is_decimal(part.type):
            _check_digits(column, number, before)
        elif _is_text(part.type) and pc.any(pc.match_substring(column, "\r\n")).as_py():
            batch = batch.set_column(number, part, pc.replace_substring(column, "\r\n", "\n"))
    return batch


def _check_digits(column: pa.Array, number: int, before: int) -> None:
    """Raise for decimals with more digits than their type allows: Arrow reads them, but they are invalid."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        most = 10 ** (column.type.precision - column.type.scale)
        row = next(row for row, value in enumerate(column.to_pylist()) if value is not None and abs(value) >= most)
        raise pa.ArrowInvalid(
            f"In CSV column #{number}: Row #{before + row + 1}: {column[row]} has too many digits for {column.type}"
        ) from None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _instants(column: pa.Array, kind: pa.DataType, number: int, before: int) -> pa.Array:
    days = pc.equal(pc.utf8_length(column), 10)
    zone = pc.if_else(pc.match_substring_regex(column, _ZONE), "", pc.if_else(days, " 00:00Z", "Z"))
    texts = pc.binary_join_element_wise(column, zone, "")
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        row = next(row for row, text in enumerate(texts) if not _fits(text, kind))
        raise pa.ArrowInvalid(
            f"In CSV column #{number}: Row #{before + row + 1}: conversion error to {kind}: "
            f"invalid value '{column[row]}'"
        ) from None


def _fits(text: pa.Scalar, kind: pa.DataType) -> bool:
    try:
        text.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _explained(path: Path, rules: CsvRules, error: pa.ArrowInvalid) -> str:
    """Return the error with the row number, which Arrow reports only in single-threaded mode, and the column's name."""
    try:
        for _ in _batches(path, rules, threads=False):
            pass
    except pa.ArrowInvalid as again:
        error = again
    said = str(error).rstrip(".")
    if said == "Empty CSV file":
        return "it is empty; the first line of a CSV file names its columns"
    if "Expected " in said and " columns, got " in said:
        return f"{said}; correct that line: put a value that contains a comma or a line break in quotes"
    if found := _COLUMN.search(said):
        name = _header(path)[int(found[1])]
        if "invalid UTF8" in said:
            row = re.search(r"Row #\d+", said)
            return f"column {name!r}: {row[0] + ' ' if row else ''}{_not_text(name)}"
        said = said.replace(found[0], f"column {name!r}: ")
        if name not in rules.types:
            said += f"; its type was guessed from the start of the file, so give its type: --type {name}=string"
        else:
            said += f"; correct the value, or read the column as text: --type {name}=string"
    return said
