"""Dictionaries that contain NULLs: Arrow does not put them together, and R must."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import semistream
from semistream.relation.relation import Relation
from semistream.relation.rows.dictionaries import without_null_words


def _words(*places: int | None) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(places, pa.int8()), pa.array(["a", None, "b"]))


def _nested(places: list[int | None]) -> dict[str, pa.Array]:
    words = _words(*places)
    ends = pa.array(range(len(places) + 1), pa.int32())
    return {
        "word": words,
        "list": pa.ListArray.from_arrays(ends, words),
        "struct": pa.StructArray.from_arrays([words], ["word"]),
        "union": pa.UnionArray.from_sparse(pa.array([0] * len(places), pa.int8()), [words]),
        "map": pa.MapArray.from_arrays(ends, pa.array([7] * len(places)), words),
    }


@pytest.mark.parametrize("name", ["word", "list", "struct", "union", "map"])
def test_batches_whose_dictionaries_contain_null(tmp_path: Path, name: str) -> None:
    batches = [
        pa.record_batch({"id": range(begin, begin + 3), "v": _nested(places)[name]})
        for begin, places in ((5, [0, 1, None]), (0, [2, 0, 1]))
    ]
    more = [pa.record_batch({"id": [begin], "v": _nested([place])[name]}) for begin, place in ((6, 2), (9, 1), (1, 1))]
    with Relation.build(batches, tmp_path / "r", "id") as relation:
        assert relation.to_table().sort_by("id")["v"].to_pylist() == [
            *_nested([2, 0, 1])[name].to_pylist(), *_nested([0, 1, None])[name].to_pylist()
        ]  # fmt: skip
        relation.apply(pa.Table.from_batches(more))
    semistream.upsert(tmp_path / "r", pa.Table.from_batches(more))
    with Relation.open(tmp_path / "r") as relation:
        kept = dict(zip(*(relation.to_table()[column].to_pylist() for column in ("id", "v")), strict=True))
        wanted = dict(zip([6, 9, 1], _nested([2, 1, 1])[name].to_pylist(), strict=True))
        assert {key: kept[key] for key in wanted} == wanted


def test_what_has_no_null_stays_as_it_is() -> None:
    batch = pa.record_batch({"v": pa.array(["x", None]).dictionary_encode(), "w": pa.array([[1], None])})
    assert without_null_words(batch) is batch
