"""Divides rows into shards by the hash of a key, sorts them, and writes the shards: R itself, or a secondary index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Ints
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.keys.valid_times import ValidTimes
from semistream.relation.pages.shard_writer import ShardWriter
from semistream.relation.pages.sorter import KeySorter
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.rows.selection import keep_rows
from semistream.relation.storage.manifest import ShardFiles

__all__ = ["SortedShards"]


class SortedShards:
    """Takes rows in any order and writes them to shards.

    Parameters
    ----------
    directory
        Where the files are made. Rows that need more than ``memory`` are spilled here.
    names
        The stem of the files of each shard.
    schema, key
        Schema of the rows, and the key by which they are divided and sorted.
    spill
        Start of the names of directories for spilled rows.
    memory
        Bytes for sorting.
    page_bytes, fill, clustered, times
        See `ShardWriter`. If not clustered, the order of the rows is kept.
    codec
        Returns how rows are encoded, given ``key``. It is called before the first row is written: in `finish`, or if
        not clustered, once the rows need half of ``memory``. By default rows are plain.
    """

    def __init__(
        self, directory: Path, names: Sequence[str], schema: pa.Schema, key: KeyCodec, *, spill: str, memory: int,
        page_bytes: int, fill: float, clustered: bool = True, times: ValidTimes | None = None,
        codec: Callable[[KeyCodec], RowCodec] | None = None,
    ) -> None:  # fmt: skip
        self.key, self._clustered, self._times = key, clustered, times
        self.null_keys = 0
        """Rows that were left out because their key is NULL."""
        self._codec = codec
        self._waiting: list[tuple[int, Ints, pa.RecordBatch]] = []  # for the codec: shard, keys and rows
        self._waiting_bytes, self._most_waiting = 0, memory // 2
        self._writers: list[ShardWriter] = []
        self._sorters: list[KeySorter] = []
        try:
            for number, name in enumerate(names):
                self._writers.append(
                    ShardWriter(
                        directory, name, schema, key, page_bytes=page_bytes, fill=fill, clustered=clustered, times=times
                    )
                )  # fmt: skip
                self._sorters.append(KeySorter(schema, directory / f"{spill}-{number}", memory // len(names)))
        except BaseException:
            self.close()
            raise

    @property
    def repeated(self) -> pa.RecordBatch | None:
        """A key that has several rows, if one was seen in key order."""
        return next((writer.repeated for writer in self._writers if writer.repeated is not None), None)

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add rows; return those whose key is not NULL."""
        keys, valid = self.key.encode(batch)
        if not valid.all():
            self.null_keys += int(np.count_nonzero(~valid))
            keys, batch = keys[valid], keep_rows(batch, valid)
        begins = None if self._times is None else self._times.begins(batch)
        home = self.key.shards(keys, len(self._writers)) if len(self._writers) > 1 else None
        for number, (sorter, writer) in enumerate(zip(self._sorters, self._writers, strict=True)):
            mine, part, when = keys, batch, begins
            if home is not None:
                here = home == number
                mine, part, when = keys[here], keep_rows(batch, here), None if begins is None else begins[here]
            if self._clustered:
                sorter.add(mine, part, when)
            elif self._codec is None:
                writer.write(mine, part)
            else:
                self._waiting.append((number, mine, part))
                self._waiting_bytes += int(part.nbytes) + mine.nbytes
        if self._waiting_bytes > self._most_waiting:
            self._encode()
        return batch

    def finish(self) -> list[ShardFiles]:
        """Sort and write all rows; return the files of each shard."""
        self._encode()
        for sorter, writer in zip(self._sorters, self._writers, strict=True):
            for mine, part in sorter.sorted():
                writer.write(mine, part)
        return [writer.close() for writer in self._writers]

    def _encode(self) -> None:
        """Find out how rows are encoded, and write those that wait for it."""
        if self._codec is None:
            return
        for writer in self._writers:
            writer.encode_with(self._codec(self.key))
        self._codec, waiting = None, self._waiting
        self._waiting, self._waiting_bytes = [], 0
        for number, keys, batch in waiting:
            self._writers[number].write(keys, batch)

    def close(self) -> None:
        """Remove spilled rows, and close the files of shards that were not finished. Their `Writer` removes them."""
        for sorter in self._sorters:
            sorter.close()
        for writer in self._writers:
            writer.abandon()
