"""Tables in files, as batches: Parquet, CSV (also compressed), Arrow IPC files and streams.

Files are read one after the other and in order, batch by batch. A table of any size therefore needs little memory, and
a table that is ordered by frequency keeps its order.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from semistream.cli.relations.csv_files import (
    CSV_NAMES,
    CsvRules,
    InputError,
    Part,
    csv_batches,
    csv_schema,
    first_not_integer,
)
from semistream.cli.relations.named_values import named_values
from semistream.core.arguments import nearest

__all__ = ["InputError", "InputFiles", "parse_types"]

_NAMES = (".parquet", ".csv", ".tsv", ".csv.gz", ".csv.zst", ".csv.bz2", ".arrow", ".arrows", ".feather", ".ipc")
_BATCH_ROWS = 1 << 16
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), *([\w/+:-]+)\]")


def parse_types(texts: Iterable[str] | None, option: str = "--type") -> dict[str, pa.DataType]:
    """Read the ``NAME=TYPE`` pairs of an option.

    >>> parse_types(["id=string", "price=decimal(12,2)"])
    {'id': DataType(string), 'price': Decimal128Type(decimal128(12, 2))}
    """
    types: dict[str, pa.DataType] = {}
    for name, kind in named_values(option, texts, "TYPE", "id=int64").items():
        try:
            if kind.startswith("decimal(") and kind.endswith(")"):
                precision, _, scale = kind[8:-1].partition(",")
                types[name] = pa.decimal128(int(precision), int(scale or 0))
            elif zoned := _ZONED.fullmatch(kind):
                types[name] = pa.timestamp(zoned[1], zoned[2])
            else:
                types[name] = pa.type_for_alias(kind)
        except (ValueError, pa.ArrowInvalid):
            raise InputError(
                f"cannot read {f'{name}={kind}'!r} as NAME=TYPE; types are Arrow's names, such as id=int64, id=string, "
                "day=date32, price=decimal(12,2), 'at=timestamp[us, UTC]'"
            ) from None
    return types


@dataclass(frozen=True)
class InputFiles:
    """One table in any number of files.

    Parameters
    ----------
    paths
        Files in the order of their rows. All have the same schema, which is read from the first file.
    types
        Types of CSV columns that must not be guessed, for example of a key with leading zeros. Each must exist.
    known
        Types of CSV columns that may exist.
    nulls
        Texts in CSV files that are NULL.
    """

    paths: tuple[Path, ...]
    types: Mapping[str, pa.DataType]
    known: Mapping[str, pa.DataType] = field(default_factory=dict)
    nulls: tuple[str, ...] = ()

    @classmethod
    def find(
        cls,
        sources: Sequence[Path],
        types: Mapping[str, pa.DataType] | None = None,
        *,
        known: Mapping[str, pa.DataType] | None = None,
        nulls: Sequence[str] = (),
    ) -> InputFiles:
        """Return the given files and, sorted by name, the files in the given directories."""
        paths: list[Path] = []
        for source in sources:
            if not source.exists():
                raise InputError(f"there is no file {source}; give Parquet, CSV or Arrow files, or a directory of them")
            inside = sorted(_tables_in(source)) if source.is_dir() else [source]
            if not inside:
                raise InputError(f"{source} is a directory without a Parquet, CSV or Arrow file; name the files")
            paths.extend(inside)
        return cls(tuple(paths), types or {}, known or {}, tuple(nulls))

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.paths)

    def reader(self, read: Callable[[int, pa.RecordBatch], None] = lambda *_: None) -> pa.RecordBatchReader:
        """Return all rows; ``read`` is called with the bytes read so far and the batch just read."""
        rules = CsvRules({**self.known, **self.types}, self.nulls)
        first = self._parts(self.paths[0], rules)
        with _decoding(self.paths[0]):
            head = next(first, None)
            schema = head[0].schema if head else _empty_schema(self.paths[0], rules)
        self._check_types(schema)
        # All files use the types of the first. Otherwise "007" in a second file would be guessed to be a number,
        # and become the text "7" in the first file's type.
        rules = CsvRules(dict(zip(schema.names, schema.types, strict=True)), self.nulls)

        def batches() -> Iterator[pa.RecordBatch]:
            before = 0
            for path in self.paths:
                size = path.stat().st_size
                if path is self.paths[0]:
                    parts = iter(()) if head is None else _chain(head, first)
                else:
                    parts = self._parts(path, rules)
                with _decoding(path):
                    for batch, share in parts:
                        same = _as(batch, schema, path)
                        read(before + int(share * size), same)
                        yield same
                before += size

        return pa.RecordBatchReader.from_batches(schema, batches())

    def check_keys(self, schema: pa.Schema, key: Sequence[str]) -> None:
        """Raise if a key column of CSV files was guessed to be a float, and show the value that caused it."""
        path = self.paths[0]
        if _kind(path) != "csv":
            return
        rules = CsvRules({**self.known, **self.types}, self.nulls)
        for name in key:
            guessed = name in schema.names and name not in rules.types
            if not guessed or not pa.types.is_floating(schema.field(name).type):
                continue
            if (found := first_not_integer(path, rules, name)) is not None:
                row, text = found
                raise InputError(
                    f"key column {name!r} of {path} was read as {schema.field(name).type}, which cannot be a key, "
                    f"because of the value {text!r} in row #{row}; correct the value, or read the column as text: "
                    f"--type {name}=string"
                )

    def _check_types(self, schema: pa.Schema) -> None:
        if not self.types:
            return
        if other := [path for path in self.paths if _kind(path) != "csv"]:
            raise InputError(f"--type is for columns of CSV files, but {other[0]} has its own types; leave it out")
        for name in self.types:
            if name not in schema.names:
                hint = nearest(name, schema.names, f"the columns are {', '.join(schema.names)}")
                raise InputError(f"--type {name}: {self.paths[0]} has no column {name!r}; {hint}")

    def _parts(self, path: Path, rules: CsvRules) -> Iterator[Part]:
        kind = _kind(path)
        if kind == "parquet":
            return _parquet(path)
        if kind == "csv":
            return csv_batches(path, rules)
        return _arrow_file(path) if kind == "arrow file" else _arrow_stream(path)


def _tables_in(directory: Path) -> Iterator[Path]:
    for path in directory.rglob("*"):
        hidden = any(part.startswith(("_", ".")) for part in path.relative_to(directory).parts)
        if path.is_file() and not hidden and path.name.lower().endswith(_NAMES):
            yield path


def _kind(path: Path) -> str:
    """Return the format, detected by the first bytes or else by the name."""
    with open(path, "rb") as file:
        head = file.read(8)
    if head[:4] == b"PAR1":
        return "parquet"
    if head[:6] == b"ARROW1":
        return "arrow file"
    if head[:4] == b"\xff\xff\xff\xff":
        return "arrow stream"
    if path.suffix.lower() in CSV_NAMES:
        return "csv"
    raise InputError(f"{path} is not a Parquet, CSV or Arrow file, by its first bytes and its name; convert it to one")


def _parquet(path: Path) -> Iterator[Part]:
    with pyarrow.parquet.ParquetFile(path) as file:
        rows = 0
        for batch in file.iter_batches(_BATCH_ROWS):
            rows += batch.num_rows
            yield batch, rows / max(1, file.metadata.num_rows)


def _arrow_file(path: Path) -> Iterator[Part]:
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number), (number + 1) / reader.num_record_batches


def _arrow_stream(path: Path) -> Iterator[Part]:
    size = max(1, path.stat().st_size)
    with open(path, "rb") as raw, pa.ipc.open_stream(raw) as reader:
        for batch in reader:
            yield batch, raw.tell() / size


def _empty_schema(path: Path, rules: CsvRules) -> pa.Schema:
    """Return the schema of a file that has no batches."""
    kind = _kind(path)
    if kind == "parquet":
        return pyarrow.parquet.read_schema(path)
    if kind == "csv":
        return csv_schema(path, rules)
    with open(path, "rb") as raw:
        reader = pa.ipc.open_file(raw) if kind == "arrow file" else pa.ipc.open_stream(raw)
        return reader.schema


def _chain(first: Part, rest: Iterator[Part]) -> Iterator[Part]:
    yield first
    yield from rest


def _as(batch: pa.RecordBatch, schema: pa.Schema, path: Path) -> pa.RecordBatch:
    """Return the batch in the schema of the first file."""
    if batch.schema.equals(schema):
        return batch
    if set(batch.schema.names) != set(schema.names):
        raise InputError(
            f"{path} has the columns {', '.join(batch.schema.names)}, but the first file has "
            f"{', '.join(schema.names)}; files of one relation must have the same columns"
        )
    return batch.select(schema.names).cast(schema)


@contextlib.contextmanager
def _decoding(path: Path) -> Iterator[None]:
    """Name the file in errors of Arrow. For some damaged pages of Parquet these are OSErrors, without a number."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        first = "".join(filter(str.isprintable, str(error).partition("\n")[0])).rstrip(".: ")
        raise InputError(f"cannot read {path}: {first}; write the file again, or leave it out") from error
