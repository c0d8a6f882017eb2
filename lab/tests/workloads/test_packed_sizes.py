"""Realistic master tables take less than half of their plain bytes when they are packed; random bytes stay plain."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from semistream.core.errors import MissingExtraError
from semistream.relation.rows.packed.packing_choice import PackingChoice
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.rows.row_gather import RowGather
from semistream_lab.workloads.masters import Layout, master
from semistream_lab.workloads.tpch import _generator

ROWS = 20_000
IN_PAGE = 13  # bytes of a page per row of variable length: key, flag and start
MOST = 0.45


def rows_of(layout: Layout, directory: Path) -> list[pa.RecordBatch]:
    """Return what pages store: all columns but the key, an integer."""
    if layout == "tpch-part":
        try:
            _generator()
        except MissingExtraError as error:
            pytest.skip(str(error))
    table = master(layout, ROWS, directory=directory)
    return [batch.select(batch.schema.names[1:]) for batch in table.batches()]


@pytest.mark.parametrize("layout", ["catalogue", "tpch-part"])
def test_packed_rows_are_less_than_half_as_long(layout: Layout, tmp_path: Path) -> None:
    batches = rows_of(layout, tmp_path)
    schema = batches[0].schema
    choice = PackingChoice(schema)
    for batch in batches:
        choice.add(batch)
    packing = choice.choose(range(len(schema)))
    assert packing is not None
    codec, plain = RowCodec(schema, packing.by_name(schema.names, range(len(schema)))), RowCodec(schema)
    packed_bytes = plain_bytes = 0
    for batch in batches:
        rows = codec.encode(batch)
        packed_bytes += rows.data.size + IN_PAGE * batch.num_rows
        plain_bytes += int(plain.lengths(batch).sum()) + IN_PAGE * batch.num_rows
        found = RowGather(codec, schema.names)(rows.data, rows.starts)
        assert pa.RecordBatch.from_arrays(found, schema=schema).equals(batch)
    assert packed_bytes <= MOST * plain_bytes


def test_random_bytes_stay_plain(tmp_path: Path) -> None:
    batches = rows_of("random", tmp_path)
    choice = PackingChoice(batches[0].schema)
    for batch in batches:
        choice.add(batch)
    assert choice.choose(range(len(batches[0].schema))) is None
