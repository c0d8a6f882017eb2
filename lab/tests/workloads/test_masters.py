from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream.core.errors import MissingExtraError
from semistream_lab.workloads.catalogue import CatalogueTable
from semistream_lab.workloads.masters import Layout, layout, master
from semistream_lab.workloads.tpch import TpchTable, _generator


@pytest.mark.parametrize("kind", ["random", "product", "catalogue", "tpch-part", "tpch-customer", "tpch-supplier"])
def test_keys_ascend_with_gaps(kind: Layout, tmp_path: Path) -> None:
    if kind.startswith("tpch"):
        try:
            _generator()
        except MissingExtraError as error:
            pytest.skip(str(error))
    source = master(kind, 3_001, stride=2, directory=tmp_path)
    table = source.table()
    assert table.schema == source.schema
    assert table.schema.names[0] == "product_id"
    assert table["product_id"].to_pylist() == list(range(0, 6_002, 2))
    assert source.row_count == 3_001


def test_tpch_rows_are_those_of_the_generator(tmp_path: Path) -> None:
    try:
        _generator()
    except MissingExtraError as error:
        pytest.skip(str(error))
    ours = master("tpch-part", 2_000, directory=tmp_path / "ours").table()
    made = TpchTable("part", 0.01, tmp_path / "theirs").table()
    assert ours.drop_columns(["product_id"]).equals(made.drop_columns(["p_partkey"]))


def test_a_catalogue_row_depends_on_its_number_alone() -> None:
    whole = CatalogueTable(1_000, seed=3)
    assert pa.Table.from_batches([whole.batch(100, 50)]).equals(whole.table().slice(100, 50))
    assert not whole.batch(0, 10).equals(CatalogueTable(1_000, seed=4).batch(0, 10))
    with pytest.raises(ValueError, match="not in a table of 1000 rows"):
        whole.batch(990, 11)


def test_a_catalogue_repeats_values_as_a_shop_does() -> None:
    table = CatalogueTable(20_000).table()
    distinct = {name: len(table[name].unique()) for name in table.column_names}
    assert distinct["sku"] == 20_000
    assert distinct["colour"] == 13  # with NULL
    assert 1_000 < distinct["brand"] < 4_001
    assert 0.9 < table["discontinued_on"].null_count / 20_000 < 1
    assert np.all(np.asarray(table["price"].cast(pa.float64())) > 0)


def test_names_of_layouts() -> None:
    assert layout("tpch") == "tpch-part"
    with pytest.raises(ValueError, match="did you mean 'catalogue'"):
        layout("catalog")
