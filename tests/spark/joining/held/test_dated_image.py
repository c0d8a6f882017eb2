"""The image of a history: each key and time finds the row that was valid, as the oracle does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream
from sales_histories import history, sales_of
from semistream.relation.relation import Relation
from semistream.spark.joining.held.image import Image, build_image, image_bytes


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_it_finds_what_the_oracle_finds(tmp_path: Path, text: bool, ends: bool) -> None:
    table, sales = history(), sales_of(1)
    if text:
        table = table.set_column(0, "id", table["id"].cast(pa.string()))
        sales = sales.set_column(1, "id", sales["id"].cast(pa.string()))
    valid_to = "until" if ends else None
    (tmp_path / "image").mkdir()
    with Relation.build(
        table, tmp_path / "r", "id", valid_from="since", valid_to=valid_to, shards=3, page_size=512
    ) as relation:
        build_image(relation, tmp_path / "image", dated=True)
        image = Image(tmp_path / "image")
        assert image.nbytes <= image_bytes(relation.row_count, relation.page_count * 512, dated=True)
        batch = sales.select(["id", "at"]).combine_chunks().to_batches()[0]
        places, valid = image.find(batch)
        (prices,) = image.gather(["price"])(image.data, places.astype(np.int64))
        oracle = semistream.create("oracle", relation, on="id", as_of="at", columns=["price"])
        expected = pa.Table.from_batches(list(oracle.process(sales.to_batches())), oracle.output_schema).sort_by("n")
        assert prices.to_pylist() == expected["price"].to_pylist()
        assert 0 < prices.null_count < len(prices)
        assert (~valid).tolist() == [None in row for row in zip(*batch.to_pydict().values(), strict=True)]
        half = np.arange(len(places)) % 2 == 0
        assert np.array_equal(image.find(batch, half)[0], np.where(half, places, -1))
