"""How ADAPTIVEJOIN lays out its memory: within what there is, whatever that is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream import Relation, create
from semistream.joins.adaptive.adaptive_layout import LEAST_KEYS, LEAST_TUPLES, AdaptiveLayout
from semistream.structures.array_source import Arrays, in_memory
from semistream.structures.hot.hot_rows import HotRows
from semistream.workloads import MasterTable

ROWS = st.integers(1, 10**6)
ROW = st.integers(20, 5000)


def layouts(room: int, row: int, rows_of_r: int) -> list[AdaptiveLayout]:
    return [
        AdaptiveLayout.of(room, row, rows_of_r),
        AdaptiveLayout.of(room, row, rows_of_r, uneven=rows_of_r // 8 + 16),
        AdaptiveLayout.of_ranges(room, row),
    ]


@given(row=ROW, more=st.integers(0, 10**8), rows_of_r=ROWS, tuples=st.integers(1, 10**7), each=st.floats(4.0, 4000.0))
def test_window_and_rows_fit_into_the_room(row: int, more: int, rows_of_r: int, tuples: int, each: float) -> None:
    for layout in layouts(AdaptiveLayout.least_room(row) + more, row, rows_of_r):
        parts = layout.parts(tuples, each)
        assert parts.taken + parts.rows * row + layout.keys * HotRows.bytes_per_key <= layout.room
        assert parts.tuples >= LEAST_TUPLES
        assert parts.rows >= LEAST_KEYS
        assert parts.limit >= 0
        if layout.most_rows is not None:
            assert parts.rows <= layout.most_rows


@given(row=ROW, more=st.integers(0, 10**8), rows_of_r=ROWS, less=st.floats(0.0, 1.0))
def test_less_room_is_kept_to(row: int, more: int, rows_of_r: int, less: float) -> None:
    layout = AdaptiveLayout.of(AdaptiveLayout.least_room(row) + more, row, rows_of_r)
    smaller = layout.within(layout.least + int(less * max(0, layout.room - layout.least)))
    parts = smaller.parts(10**6, 20.0)
    assert parts.taken + parts.rows * row + smaller.keys * HotRows.bytes_per_key <= smaller.room
    assert smaller.keys == layout.keys
    assert smaller.most_rows in (None, layout.most_rows)


@pytest.mark.parametrize(("rows_of_r", "whole"), [(5000, True), (8000, False)])
def test_all_rows_of_a_small_r_have_a_place(rows_of_r: int, whole: bool) -> None:
    layout = AdaptiveLayout.of(1_000_000, row=150, rows_of_r=rows_of_r)
    assert (layout.most_rows == rows_of_r) is whole
    if whole:
        assert layout.parts(10**6, 20.0).rows == rows_of_r


def test_what_is_left_in_files_is_of_one_layout_however_fast_reads_were_just_then(tmp_path: Path) -> None:
    """Each worker measures the device for itself; another number must not cost the cache of the last one."""
    Relation.build(MasterTable(200_000).table(), tmp_path / "r", key="product_id").close()
    found = set()
    for transfer in (1e-6, 2e-6, 4e-6, 6e-6, 8e-6, 1.2e-5, 2e-5, 4e-5):
        with Relation.open(tmp_path / "r") as relation:
            device = relation.device
            device._profile = dataclasses.replace(device.profile, transfer_seconds=transfer)

            def arrays(layout: str) -> Arrays:
                found.add(layout)
                return in_memory

            join = create("adaptivejoin", relation, on="product_id", memory="7MB", arrays=arrays)
            assert sum(batch.num_rows for batch in join.process([pa.record_batch({"product_id": [1, 2, 3]})])) == 3
    assert len(found) == 1, found
