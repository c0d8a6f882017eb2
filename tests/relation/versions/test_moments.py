"""All tasks of a micro-batch find one pin, whether they know their query or only the time of the batch."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pyarrow as pa
import pytest

from semistream.relation.relation import Relation
from semistream.relation.versions import moments, pins
from semistream.relation.versions.moments import MOMENTS, keep_under, name_of_batch

NOW = 1_794_767_337_481


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / pins.PINS


def test_whoever_comes_first_all_go_by_one_name(place: Path) -> None:
    known, unknown = ("q-1", 7), (None, None)
    for moment, order in enumerate(itertools.permutations([known, known, unknown, unknown]), NOW):
        batch = moment - NOW
        found = {
            name_of_batch([place], "join", moment, query, None if query is None else batch)
            for query, _ in (*order, *order)  # and again, as in a replay
        }
        assert len(found) == 1, order
        assert found == {("q-1", batch) if order[0] == known else ("at-join", moment)}


def test_other_joins_and_queries_at_the_same_moment(place: Path, tmp_path: Path) -> None:
    Relation.build(pa.table({"id": [1]}), tmp_path / "r", "id").close()
    place = tmp_path / "r" / pins.PINS
    assert name_of_batch([place], "a", NOW, "q-1", 1) == ("q-1", 1)
    assert name_of_batch([place], "b", NOW) == ("at-b", NOW)
    pins.version_for(tmp_path / "r", "q-1", 1)
    # A second query with the same join at the same millisecond: one pin, under both names.
    assert name_of_batch([place], "a", NOW, "q-2", 9) == ("q-1", 1)
    keep_under([place], ("q-1", 1), ("q-2", 9))
    assert (place / "q-2" / f"{9:012d}").read_text() == "1"
    (place / "q-1" / f"{1:012d}").unlink()
    assert name_of_batch([place], "a", NOW, "q-2", 9) == ("q-2", 9), "the first has forgotten it, the second not"


def test_notes_that_a_power_failure_left_are_made_anew(place: Path) -> None:
    name_of_batch([place], "a", NOW)
    note = next((place / MOMENTS).iterdir())
    for left in (b"", b"\xff\x00", b"at-a", b"../x 1"):
        note.write_bytes(left)
        assert name_of_batch([place], "a", NOW, "q-1", 3) == ("q-1", 3)
        assert name_of_batch([place], "a", NOW) == ("q-1", 3)


def test_notes_go_with_their_pins(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "_SWEEP_EVERY", 1)
    for batch in range(4):
        query, number = name_of_batch([place], "a", NOW + batch, "q-1", batch)
        (place / query).mkdir(exist_ok=True)
        (place / query / f"{number:012d}").write_text("1")
    assert len(list((place / MOMENTS).iterdir())) == 4
    (place / "q-1" / f"{0:012d}").unlink()
    for note in (place / MOMENTS).iterdir():
        os.utime(note, (1, 1))
    name_of_batch([place], "a", NOW + 4, "q-1", 4)
    left = sorted((place / MOMENTS).iterdir())
    assert [note.name for note in left] == [f"m{NOW + batch:015d}-a" for batch in (1, 2, 3, 4)]
    assert pins.pinned_versions(tmp_path) == {1}, "notes are no pins"


def test_the_last_place_is_written_and_all_are_read(tmp_path: Path) -> None:
    relation, elsewhere = tmp_path / "r", tmp_path / "check"
    name_of_batch([relation], "a", NOW)
    assert name_of_batch([relation, elsewhere], "a", NOW, "q-1", 3) == ("at-a", NOW), "it could be written then"
    assert name_of_batch([relation, elsewhere], "a", NOW + 1, "q-1", 4) == ("q-1", 4)
    assert [note.name for note in (elsewhere / MOMENTS).iterdir()] == [f"m{NOW + 1:015d}-a"]
