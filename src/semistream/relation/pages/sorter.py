"""Sorts batches by key within bounded memory: sorted runs on disk, merged by key range."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Ints
from semistream.relation.rows.dictionaries import bytes_without_words
from semistream.relation.rows.selection import take_rows
from semistream.relation.storage import files

__all__ = ["KeySorter"]

_KEY, _TIME = "__semistream_key64", "__semistream_time"
_BLOCK = 1 << 14  # rows per record batch of a spilled run; each batch has a fence key
_BUFFER = 1 << 20  # bytes of the write buffer of a spilled run
_COPIES = 3
"""Copies of the data in memory at the same time: the batches, one combined table, and the sorted table."""
_SAMPLE = 4096
"""Keys sampled per run, to decide where to cut it."""
_LEAST_ROWS = 64
"""Minimum rows of a slice, however long the rows are."""
_AIM = 0.8
"""Share of a slice's bytes that the samples aim at, so that a slice slightly larger than estimated still fits."""
_MOST_OF_A_COLUMN = 1 << 30
"""Maximum bytes of one column that are sorted together. An Arrow array of strings or lists holds up to 2 GiB."""


class KeySorter:
    """Takes batches with their keys and returns them in key order. Equal keys keep their order of arrival.

    If batches come with times, equal keys are in the order of their times.

    Batches that fit into a third of ``memory`` are sorted in memory. Beyond that, sorted runs are spilled next to the
    relation. The merge cuts the key range into slices that fit, and sorts the slices of all runs together. Samples of
    the runs tell where to cut. A slice that is too large is cut again, and a key whose rows do not fit comes in parts.

    Parameters
    ----------
    schema
        Schema of the batches.
    directory
        Directory for spilled runs. Created when needed; removed by `close`.
    memory
        Bytes for batches and their sorted copies. More memory means fewer, longer runs.
    """

    def __init__(self, schema: pa.Schema, directory: Path, memory: int) -> None:
        self._schema = schema
        self._directory = directory
        self._memory = memory
        self._batches: list[pa.RecordBatch] = []
        self._keys: list[Ints] = []
        self._times: list[Ints] | None = None
        self._bytes = 0
        self._long = [at for at, field in enumerate(schema) if not pa.types.is_primitive(field.type)]
        self._column_bytes = np.zeros(max(1, len(self._long)), np.int64)
        self._measured = [at for at, field in enumerate(schema) if _is_measured(field.type)]
        self._unmeasured_bytes = 0  # of keys, too
        self._rows = 0
        self._total_bytes = 0
        self._runs: list[Path] = []
        self._fences: list[Ints] = []
        self._samples: list[tuple[Ints, int]] = []  # keys, and how many rows each represents
        self._words: set[int] = set()  # addresses of dictionaries shared by the batches in memory

    def add(self, keys: Ints, batch: pa.RecordBatch, times: Ints | None = None) -> None:
        """Add a batch, and the times by which to sort rows of a key. This may spill the batches in memory."""
        if batch.num_rows == 0:
            return
        if times is not None:
            self._times = [*(self._times or []), times]
        of_columns = np.array([bytes_without_words(batch.column(at)) for at in self._long] or [0])
        if (self._column_bytes + of_columns).max() > _MOST_OF_A_COLUMN:
            self._flush()
        self._column_bytes = self._column_bytes + of_columns
        self._batches.append(batch)
        self._keys.append(keys)
        size = sum(map(bytes_without_words, batch.columns)) + keys.nbytes + (0 if times is None else times.nbytes)
        self._bytes += size + self._new_words(batch)
        self._total_bytes += size
        self._unmeasured_bytes += size - sum(bytes_without_words(batch.column(at)) for at in self._measured)
        self._rows += batch.num_rows
        if _COPIES * self._bytes >= self._memory:
            self._flush()

    def sorted(self) -> Iterator[tuple[Ints, pa.RecordBatch]]:
        """Yield all rows in key order, in batches that fit into the memory."""
        if not self._runs:
            if self._batches:
                keys, batch, _ = self._take_held()
                yield keys, batch
            return
        self._flush()
        splits = self._splits()
        readers = [pa.ipc.open_file(pa.BufferReader(_mapped(path))) for path in self._runs]
        for part in range(splits.size + 1):
            low = None if part == 0 else int(splits[part - 1])
            high = None if part == splits.size else int(splits[part])
            slices = [
                piece
                for reader, first in zip(readers, self._fences, strict=True)
                for piece in _slices(reader, first, low, high)
            ]
            for fitting in self._fitting(slices):
                table = pa.Table.from_batches(fitting)
                keys, times = table.column(_KEY).to_numpy(), None
                if _TIME in table.column_names:
                    times = table.column(_TIME).to_numpy()
                    table = table.drop_columns([_TIME])
                keys, batch, _ = _in_order(keys, table.drop_columns([_KEY]), times)
                yield keys, batch

    def _fitting(self, slices: list[pa.RecordBatch], by: int = -1) -> Iterator[list[pa.RecordBatch]]:
        """Divide rows of some keys, a part of each run, into parts that fit, in the order of their keys.

        ``by`` is the column to divide by: the keys, or the times of rows that all have the same key.
        """
        if self._fit(slices):
            if slices:
                yield slices
            return
        longest = max(slices, key=lambda piece: piece.num_rows)
        middle = _keys_of(longest, by)[longest.num_rows // 2]
        below, same, above = [], [], []
        for piece in slices:
            begin, end = (int(np.searchsorted(_keys_of(piece, by), middle, side=side)) for side in ("left", "right"))
            below += [piece.slice(0, begin)] * (begin > 0)
            same += [piece.slice(begin, end - begin)] * (end > begin)
            above += [piece.slice(end)] * (end < piece.num_rows)
        yield from self._fitting(below, by)
        if by == -1 and longest.schema.names[-2:-1] == [_TIME]:
            yield from self._fitting(same, -2)
        else:
            # rows of one key stay as they came: those of a run before those of the next
            ends = np.cumsum([self._size(piece) for piece in same]) // self._most
            for part in np.split(np.arange(len(same)), np.flatnonzero(np.diff(ends)) + 1):
                yield [same[at] for at in part]
        yield from self._fitting(above, by)

    def _fit(self, slices: list[pa.RecordBatch]) -> bool:
        """Say whether rows fit into the memory together, with their copies."""
        few = sum(piece.num_rows for piece in slices) <= _LEAST_ROWS
        return few or sum(map(self._size, slices)) <= self._most

    def _size(self, piece: pa.RecordBatch) -> float:
        """Return the bytes of a part of a run; a column that Arrow cannot measure in part counts with its average."""
        averaged: float = piece.num_rows * self._unmeasured_bytes / self._rows
        return averaged + sum(bytes_without_words(piece.column(at)) for at in self._measured)

    @property
    def _most(self) -> float:
        """Bytes of a slice."""
        return max(1.0, min(self._memory / _COPIES, _MOST_OF_A_COLUMN / 2))

    def _splits(self) -> Ints:
        """Return the keys at which to cut all runs, so that each slice fits into memory with its copies."""
        rows = max(_LEAST_ROWS, int(_AIM * self._most / (self._total_bytes / self._rows)))
        keys = np.concatenate([sample for sample, _ in self._samples])
        stands_for = np.concatenate([np.full(sample.size, each) for sample, each in self._samples])
        order = np.argsort(keys, kind="stable")
        part = np.cumsum(stands_for[order]) // rows
        return np.unique(keys[order][1:][np.diff(part) > 0])

    def close(self) -> None:
        """Remove spilled runs."""
        if self._runs:
            self._runs = []
            files.remove_tree(self._directory)

    def _new_words(self, batch: pa.RecordBatch) -> int:
        """Return the bytes of the batch's dictionaries that no batch in memory shares."""
        size = 0
        for column in batch.columns:
            if pa.types.is_dictionary(column.type):
                address = next((buffer.address for buffer in column.dictionary.buffers()[::-1] if buffer), 0)
                size += 0 if address in self._words else column.dictionary.nbytes
                self._words.add(address)
        return size

    def _take_held(self) -> tuple[Ints, pa.RecordBatch, Ints | None]:
        keys, table = np.concatenate(self._keys), pa.Table.from_batches(self._batches, self._schema)
        times = None if self._times is None else np.concatenate(self._times)
        self._keys, self._batches, self._bytes = [], [], 0
        self._times = None if times is None else []
        self._column_bytes, self._words = np.zeros_like(self._column_bytes), set()
        return _in_order(keys, table, times)

    def _flush(self) -> None:
        if not self._batches:
            return
        keys, batch, times = self._take_held()
        if not self._runs:
            files.make_directory(self._directory)
        path = self._directory / f"run-{len(self._runs):05d}.arrow"
        self._runs.append(path)
        schema = self._schema if times is None else self._schema.append(pa.field(_TIME, pa.int64()))
        by = [pa.array(order) for order in (times, keys) if order is not None]
        with_key = pa.RecordBatch.from_arrays([*batch.columns, *by], schema=schema.append(pa.field(_KEY, pa.int64())))
        with (
            files.create(path) as file,
            pa.BufferedOutputStream(pa.PythonFile(file, "w"), _BUFFER) as sink,
            pa.ipc.new_file(sink, with_key.schema) as writer,
        ):
            for first in range(0, batch.num_rows, _BLOCK):
                writer.write_batch(with_key.slice(first, _BLOCK))
        self._fences.append(keys[::_BLOCK].copy())
        each = max(1, keys.size // _SAMPLE)
        self._samples.append((keys[::each].copy(), each))


def _mapped(path: Path) -> pa.Buffer:
    """Map a file into memory and close it, so that many runs do not exhaust file descriptors."""
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


def _is_measured(kind: pa.DataType) -> bool:
    """Say whether `bytes_without_words` is right for a part of an array of this type."""
    if pa.types.is_dictionary(kind):
        return True
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType | pa.StructType | pa.MapType):
        inner = [kind.field(at).type for at in range(kind.num_fields)]
        return all(_is_measured(part) and not pa.types.is_dictionary(part) for part in inner)
    texts = pa.string(), pa.large_string(), pa.binary(), pa.large_binary()
    plain = pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind)
    return plain or kind in texts


def _keys_of(piece: pa.RecordBatch, by: int = -1) -> Ints:
    keys: Ints = piece.column(piece.num_columns + by).to_numpy()
    return keys


def _in_order(keys: Ints, table: pa.Table, times: Ints | None) -> tuple[Ints, pa.RecordBatch, Ints | None]:
    if times is None and np.all(keys[1:] >= keys[:-1]):
        return keys, _one_batch(table), None
    order = np.argsort(keys, kind="stable") if times is None else np.lexsort((times, keys))
    times = None if times is None else times[order]
    try:
        return keys[order], _one_batch(table.take(pa.array(order))), times
    except pa.ArrowNotImplementedError:
        return keys[order], take_rows(_one_batch(table), order), times


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    return (
        pa.RecordBatch.from_arrays([_one_chunk(column) for column in table.columns], schema=table.schema)
        if table.num_columns
        else pa.RecordBatch.from_struct_array(pa.array([{}] * table.num_rows, pa.struct([])))
    )


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        return pa.concat_arrays(combined.chunks) if combined.num_chunks else pa.array([], column.type)
    return combined


def _slices(
    reader: pa.RecordBatchFileReader, fences: Ints, low: int | None, high: int | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a run with ``low <= key < high``."""
    # The block before the first fence >= low may end with keys >= low.
    first = 0 if low is None else max(0, int(np.searchsorted(fences, low, side="left")) - 1)
    last = fences.size if high is None else int(np.searchsorted(fences, high, side="left"))
    for block in range(first, last):
        batch = reader.get_batch(block)
        keys = _keys_of(batch)
        begin = 0 if low is None else int(np.searchsorted(keys, low, side="left"))
        end = keys.size if high is None else int(np.searchsorted(keys, high, side="left"))
        if end > begin:
            yield batch.slice(begin, end - begin)
