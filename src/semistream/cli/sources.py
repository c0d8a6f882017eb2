"""Tables in files, as batches: Parquet, CSV (also compressed), Arrow IPC files and streams.

Files are read one after the other and in order, a batch at a time, so a table of any size passes through little
memory, and a table that is ordered by frequency stays so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from semistream.core.errors import SemistreamError

__all__ = ["InputError", "InputFiles", "parse_types"]

_CSV = {".csv": None, ".tsv": None, ".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_NAMES = (".parquet", ".csv", ".tsv", ".csv.gz", ".csv.zst", ".csv.bz2", ".arrow", ".arrows", ".feather", ".ipc")
_BATCH_ROWS = 1 << 16

Part = tuple[pa.RecordBatch, float]
"""A batch, and the share of its file that has been read with it."""


class InputError(SemistreamError, ValueError):
    """A file that cannot be read as a table, or not as the same table as the others."""


def parse_types(texts: Sequence[str]) -> dict[str, pa.DataType]:
    """Read ``NAME=TYPE`` pairs.

    >>> parse_types(["id=string", "price=decimal(12,2)"])
    {'id': DataType(string), 'price': Decimal128Type(decimal128(12, 2))}
    """
    types: dict[str, pa.DataType] = {}
    for text in texts:
        name, _, kind = text.partition("=")
        try:
            if kind.startswith("decimal(") and kind.endswith(")"):
                precision, _, scale = kind[8:-1].partition(",")
                types[name] = pa.decimal128(int(precision), int(scale or 0))
            else:
                types[name] = pa.type_for_alias(kind)
        except (ValueError, pa.ArrowInvalid):
            raise InputError(
                f"cannot read {text!r} as NAME=TYPE; types are Arrow's names, such as id=int64, id=string, "
                "day=date32, price=decimal(12,2)"
            ) from None
    return types


@dataclass(frozen=True)
class InputFiles:
    """One table in any number of files.

    Parameters
    ----------
    paths
        Files in the order of their rows, all of one schema; the first one's is the table's.
    types
        Types of CSV columns that must not be guessed, such as a key with leading zeros.
    """

    paths: tuple[Path, ...]
    types: Mapping[str, pa.DataType]

    @classmethod
    def find(cls, sources: Sequence[Path], types: Mapping[str, pa.DataType] | None = None) -> InputFiles:
        """Return the files named, and those in the directories named, in the order of their names."""
        paths: list[Path] = []
        for source in sources:
            if not source.exists():
                raise InputError(f"there is no file {source}; give Parquet, CSV or Arrow files, or a directory of them")
            inside = sorted(_tables_in(source)) if source.is_dir() else [source]
            if not inside:
                raise InputError(f"{source} is a directory without a Parquet, CSV or Arrow file; name the files")
            paths.extend(inside)
        return cls(tuple(paths), types or {})

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.paths)

    def reader(self, read: Callable[[int, pa.RecordBatch], None] = lambda *_: None) -> pa.RecordBatchReader:
        """Return all rows; ``read`` is told the bytes read so far and the batch that they gave."""
        first = self._parts(self.paths[0])
        try:
            head = next(first, None)
            schema = head[0].schema if head else _empty_schema(self.paths[0])
        except pa.ArrowException as error:
            raise _unreadable(self.paths[0], error) from error

        def batches() -> Iterator[pa.RecordBatch]:
            before = 0
            for path in self.paths:
                size = path.stat().st_size
                if path is self.paths[0]:
                    parts = iter(()) if head is None else _chain(head, first)
                else:
                    parts = self._parts(path)
                try:
                    for batch, share in parts:
                        same = _as(batch, schema, path)
                        read(before + int(share * size), same)
                        yield same
                except pa.ArrowException as error:
                    raise _unreadable(path, error) from error
                before += size

        return pa.RecordBatchReader.from_batches(schema, batches())

    def _parts(self, path: Path) -> Iterator[Part]:
        kind = _kind(path)
        if kind == "parquet":
            return _parquet(path)
        if kind == "csv":
            return _csv(path, self.types)
        return _arrow_file(path) if kind == "arrow file" else _arrow_stream(path)


def _tables_in(directory: Path) -> Iterator[Path]:
    for path in directory.rglob("*"):
        hidden = any(part.startswith(("_", ".")) for part in path.relative_to(directory).parts)
        if path.is_file() and not hidden and path.name.lower().endswith(_NAMES):
            yield path


def _kind(path: Path) -> str:
    """Tell the format by the first bytes, which do not lie, and only then by the name."""
    with open(path, "rb") as file:
        head = file.read(8)
    if head[:4] == b"PAR1":
        return "parquet"
    if head[:6] == b"ARROW1":
        return "arrow file"
    if head[:4] == b"\xff\xff\xff\xff":
        return "arrow stream"
    if path.suffix.lower() in _CSV:
        return "csv"
    raise InputError(f"{path} is not a Parquet, CSV or Arrow file, by its first bytes and its name; convert it to one")


def _parquet(path: Path) -> Iterator[Part]:
    with pyarrow.parquet.ParquetFile(path) as file:
        rows = 0
        for batch in file.iter_batches(_BATCH_ROWS):
            rows += batch.num_rows
            yield batch, rows / max(1, file.metadata.num_rows)


def _csv(path: Path, types: Mapping[str, pa.DataType]) -> Iterator[Part]:
    size = max(1, path.stat().st_size)
    codec = _CSV[path.suffix.lower()]
    parse = pyarrow.csv.ParseOptions(delimiter="\t" if ".tsv" in path.suffixes else ",")
    convert = pyarrow.csv.ConvertOptions(column_types=dict(types))
    with open(path, "rb") as raw:
        source = pa.CompressedInputStream(raw, codec) if codec else raw
        with pyarrow.csv.open_csv(source, parse_options=parse, convert_options=convert) as reader:
            for batch in reader:
                yield batch, raw.tell() / size


def _arrow_file(path: Path) -> Iterator[Part]:
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number), (number + 1) / reader.num_record_batches


def _arrow_stream(path: Path) -> Iterator[Part]:
    size = max(1, path.stat().st_size)
    with open(path, "rb") as raw, pa.ipc.open_stream(raw) as reader:
        for batch in reader:
            yield batch, raw.tell() / size


def _empty_schema(path: Path) -> pa.Schema:
    """Return the schema of a file without a single batch."""
    kind = _kind(path)
    if kind == "parquet":
        return pyarrow.parquet.read_schema(path)
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
            f"{path} has the columns {', '.join(batch.schema.names)}, and the first file {', '.join(schema.names)}; "
            "files of one relation must have the same columns"
        )
    return batch.select(schema.names).cast(schema)


def _unreadable(path: Path, error: Exception) -> InputError:
    remedy = ""
    if path.suffix.lower() in _CSV and "conversion error" in str(error):
        remedy = "; types are guessed from the start of the file, so give the column's own: --type NAME=string"
    return InputError(f"cannot read {path}: {str(error).rstrip('.')}{remedy}")
