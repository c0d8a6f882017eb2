"""An LRU cache of rows in front of RocksDB: batched look-ups of sorted keys, past the page cache, page-sized blocks.

R is ingested as sorted files, so each key is in one file and a look-up reads one block. Index blocks are cached. Data
blocks are rarely requested twice, as the LRU holds the rows that are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from semistream.core.arrays import Ints
from semistream_lab.benchmarks.peers.cached_store import CachedStore
from semistream_lab.benchmarks.peers.contestant import Contestant
from semistream_lab.benchmarks.peers.dataset import Dataset

__all__ = ["CONTESTANTS", "RocksdbPeer"]

FOLDER = "rocksdb"
BLOCK_BYTES = 4096
FILE_ROWS = 2_000_000


class RocksdbPeer(CachedStore):
    """Keys are big-endian, so that they sort like the integers; rows are uncompressed values."""

    id = "rocksdb"
    title = "LRU before RocksDB"
    needs = ("rocksdict",)
    store_share = 0.2
    threads = 16
    chunk = 256

    @classmethod
    def prepare(cls, data: Dataset) -> None:
        import rocksdict

        def load(path: Path) -> None:
            width = data.format.width
            sorted_files: list[str] = []
            writer, count = None, 0
            for keys, rows in data.parts():
                if writer is None:
                    sorted_files.append(str(path.parent / f"{len(sorted_files)}.sst"))
                    writer, count = rocksdict.SstFileWriter(cls._options(1 << 20)), 0
                    writer.open(sorted_files[-1])
                held, names = rows.tobytes(), keys.astype(">i8").tobytes()
                for i in range(keys.size):
                    writer[names[8 * i : 8 * i + 8]] = held[width * i : width * (i + 1)]
                count += keys.size
                if count >= FILE_ROWS:
                    writer.finish()
                    writer = None
            if writer is not None:
                writer.finish()
            database = rocksdict.Rdict(str(path), cls._options(1 << 20))
            moving = rocksdict.IngestExternalFileOptions()
            moving.set_move_files(True)
            database.ingest_external_file(sorted_files, moving)
            database.close()

        data.made(FOLDER, load)

    @staticmethod
    def _options(cache_bytes: int) -> Any:
        import rocksdict

        blocks = rocksdict.BlockBasedOptions()
        blocks.set_block_size(BLOCK_BYTES)
        blocks.set_format_version(5)
        blocks.set_data_block_index_type(rocksdict.DataBlockIndexType.binary_and_hash())
        blocks.set_block_cache(rocksdict.Cache(max(1 << 16, cache_bytes)))
        options = rocksdict.Options(raw_mode=True)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        options.set_use_direct_reads(True)
        options.set_block_based_table_factory(blocks)
        return options

    def open(self, cache_bytes: int) -> None:
        import rocksdict

        self._database: Any = rocksdict.Rdict(
            str(self.task.data.place / FOLDER),
            self._options(cache_bytes),
            access_type=rocksdict.AccessType.read_only(False),
        )

    def look_up(self, keys: Ints, thread: int) -> bytes:
        names = keys.astype(">i8").tobytes()
        wanted = [names[at : at + 8] for at in range(0, len(names), 8)]
        return b"".join(row for row in self._database[wanted] if row is not None)

    def close(self) -> None:
        super().close()
        self._database.close()


CONTESTANTS: list[type[Contestant]] = [RocksdbPeer]
