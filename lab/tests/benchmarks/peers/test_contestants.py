"""Every contestant but Spark, in this process: what it joins is right, whatever it has kept from the batches before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream_lab.benchmarks.peers import Task, contestant, contestants
from semistream_lab.benchmarks.peers.dataset import Dataset
from semistream_lab.benchmarks.peers.device_limit import DeviceLimit
from semistream_lab.benchmarks.tournament.answers import Answer, right_answer
from semistream_lab.workloads.workload import zipf

pytestmark = pytest.mark.slow

ROWS, BATCH = 20_000, 3_000


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    data = Dataset(str(tmp_path_factory.mktemp("peers")), ROWS, 128)
    data.write()
    return Task(data, data.nbytes // 5, BATCH, 1.0, "random")


@pytest.fixture(scope="module")
def batches(task: Task) -> list[tuple[pa.RecordBatch, Answer]]:
    """Three batches; the last has keys that R has not."""
    table = zipf(ROWS, 3 * BATCH, 1.0, "random", row_bytes=128).stream.table().combine_chunks()
    cut = table.to_batches(max_chunksize=BATCH)
    keys = cut[-1]["product_id"].to_numpy().copy()
    keys[::7] += 10 * ROWS
    cut[-1] = cut[-1].set_column(0, "product_id", pa.array(keys))
    return [(batch, right_answer(batch, task.data)) for batch in cut]


@pytest.mark.parametrize("name", [name for name in contestants() if name not in ("spark", "device_limit")])
def test_answers_are_right(name: str, task: Task, batches: list[tuple[pa.RecordBatch, Answer]]) -> None:
    kind = contestant(name)
    if name == "quix_sqlite":  # it needs an older pydantic than other packages here
        pytest.importorskip("quixstreams")
    assert kind.missing() is None
    kind.prepare(task.data)
    joining = kind(task)
    for batch, right in batches:
        answer = Answer()
        assert joining.timed(batch, answer.add) > 0
        assert answer == right
    joining.close()
    assert batches[-1][1].rows < BATCH
    assert all(path.exists() for path in joining.files())


def test_stores_keep_what_was_asked_for(task: Task, batches: list[tuple[pa.RecordBatch, Answer]]) -> None:
    """The same batch again is answered by the LRU alone, as far as it fits."""
    kind = contestant("sqlite")
    kind.prepare(task.data)
    joining = kind(task)
    for _ in range(2):
        list(joining.join(batches[0][0]))
    counts = joining.counts()
    distinct = np.unique(batches[0][0]["product_id"].to_numpy()).size
    assert counts["looked_up"] == distinct
    assert counts["hits"] == BATCH
    joining.close()


def test_the_limit_reads_pages_of_keys_that_no_cache_has(task: Task) -> None:
    DeviceLimit.prepare(task.data)
    limit = DeviceLimit(task)
    hot = limit._hot
    assert hot.size == task.memory // 128
    schema = zipf(ROWS, 1, 1.0, "random").stream.schema
    others = np.setdiff1d(np.arange(ROWS), hot)

    def asked(keys: np.ndarray) -> pa.RecordBatch:
        columns = [pa.array(keys, pa.int64()), pa.array(keys, pa.int64()), pa.array(keys, pa.int32())]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    assert limit.needed(asked(hot)).size == 0
    assert limit.needed(asked(others[[5, 5, 5]])).size == 1
    assert limit.timed(asked(others), lambda _: None) > 0
    limit.close()


def test_names_of_nobody_are_explained() -> None:
    with pytest.raises(ValueError, match="rocksdb"):
        contestant("rocksbd")


def test_files_are_made_whole_or_not_at_all(tmp_path: Path) -> None:
    data = Dataset(str(tmp_path), 100, 64)

    def broken(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        data.made("form", broken)
    assert list(data.place.iterdir()) == []
    assert data.made("form", lambda path: path.write_text("whole")).read_text() == "whole"
    assert data.made("form", broken).read_text() == "whole"
