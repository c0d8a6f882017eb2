"""Different keys with one hash: a stream tuple that meets a stranger has no partner, and leaves exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.relation import Relation
from semistream_lab.conformance.expected import assert_same_rows, in_batches, join_pairs, paired

pytestmark = pytest.mark.slow

BUCKETS = 23


@pytest.fixture(autouse=True)
def weak_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let hashed keys have only a few different key64, so that most of the stream's collide with R's."""
    strong = KeyCodec.encode

    def weak(self: KeyCodec, batch: pa.RecordBatch, on: Any = None) -> Any:
        keys, valid = strong(self, batch, on)
        return np.mod(keys, BUCKETS), valid

    monkeypatch.setattr(KeyCodec, "encode", weak)


def keys_apart(kind: str) -> tuple[list[Any], list[Any]]:
    """Return keys for R of which no two collide, and many others that do."""
    candidates: list[Any] = [f"key {i}" if kind == "text" else (i % 7, f"{i}") for i in range(300)]
    batch = as_batch(kind, candidates)
    codec = KeyCodec.for_schema(batch.schema, batch.schema.names)
    keys, _ = codec.encode(batch)
    _, first = np.unique(keys, return_index=True)
    chosen = sorted(first.tolist()[: BUCKETS - 5])
    return [candidates[i] for i in chosen], candidates


def as_batch(kind: str, keys: list[Any]) -> pa.RecordBatch:
    if kind == "text":
        return pa.record_batch({"id": keys})
    return pa.record_batch({"a": pa.array([a for a, _ in keys], pa.int16()), "b": [b for _, b in keys]})


@pytest.mark.sampled(3)
@pytest.mark.parametrize("algorithm", semistream.algorithms())
@pytest.mark.parametrize("kind", ["text", "two columns"])
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("clustered", [True, False])
def test_strangers_leave_once(tmp_path: Path, algorithm: str, kind: str, how: Any, clustered: bool) -> None:
    rng = np.random.default_rng(5)
    own, candidates = keys_apart(kind)
    # each key with 1, 2, … up to 18 rows: of one page and of several
    rows = rng.permutation(np.repeat(np.arange(len(own)), np.arange(1, len(own) + 1)))
    keyed = as_batch(kind, [own[row] for row in rows])
    names = keyed.schema.names
    master = pa.Table.from_batches([keyed]).append_column("r", pa.array(np.arange(rows.size)))
    relation = Relation.build(master, tmp_path / "r", key=names, page_size=512, clustered=clustered)
    drawn = [candidates[i] for i in rng.integers(0, len(candidates), 400)] + own * 3
    stream = pa.Table.from_batches([as_batch(kind, drawn)]).append_column("s", pa.array(np.arange(len(drawn))))
    join = semistream.create(algorithm, relation, on=names, how=how, memory="48KB")
    found = list(join.process(in_batches(stream, 60)))
    pairs = join_pairs(stream, master, names, names, how)
    assert_same_rows(pa.Table.from_batches(found, join.output_schema), paired(stream, master, names, pairs, "_right"))
    matched = {left for left, right in pairs if right is not None}
    assert join.stats.unmatched == len(drawn) - len(matched)
    assert join.stats.rows_done == len(drawn)
    join.check()
