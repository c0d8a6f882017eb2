"""Attributes of a product as functions of its number: name, category and price.

The sales stream and the master table agree on them without sharing data. A sale's amount is its quantity times
the price that the join finds, and tests can check this.

Example
-------
>>> numbers = np.array([3, 1])
>>> names(7, numbers).to_pylist(), categories(7, numbers).to_pylist()
(['Mirror 3', 'Chair 1'], ['Garden', 'Health'])
>>> prices(7, numbers).tolist()
[34130, 11779]
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from semistream.workloads.keys.draws import integers_at, sequence_seed

__all__ = ["categories", "longest_text", "names", "prices"]

_CATEGORIES = (
    "Bakery", "Books", "Clothing", "Electronics", "Garden", "Grocery", "Health", "Household", "Music",
    "Office", "Pets", "Sports", "Stationery", "Tools", "Toys", "Travel",
)  # fmt: skip
_NOUNS = (
    "Basket", "Blanket", "Bottle", "Bowl", "Box", "Brush", "Cable", "Candle", "Chair", "Clock", "Cup", "Desk",
    "Drill", "Frame", "Glove", "Jacket", "Jar", "Kettle", "Lamp", "Mirror", "Notebook", "Pan", "Pen",
    "Pillow", "Plate", "Radio", "Rope", "Scarf", "Shelf", "Spoon", "Table", "Vase",
)  # fmt: skip
_LOWEST_PRICE = 99
_PRICE_BANDS = np.array([1_000, 5_000, 20_000, 100_000], dtype=np.int64)


def longest_text(size: int) -> int:
    """Return the maximum bytes of name and category of one of ``size`` products."""
    return max(map(len, _NOUNS)) + 1 + len(str(size - 1)) + max(map(len, _CATEGORIES))


def names(seed: int, numbers: NDArray[np.int64]) -> pa.Array:
    """Return each product's name: a noun and its number."""
    noun = integers_at(sequence_seed(seed, "noun"), numbers, below=len(_NOUNS))
    return pc.binary_join_element_wise(
        pa.array(_NOUNS).take(pa.array(noun)), pc.cast(pa.array(numbers), pa.string()), " "
    )


def categories(seed: int, numbers: NDArray[np.int64]) -> pa.Array:
    """Return each product's category."""
    category = integers_at(sequence_seed(seed, "category"), numbers, below=len(_CATEGORIES))
    return pa.array(_CATEGORIES).take(pa.array(category))


def prices(seed: int, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each product's price in cents: many cheap ones, some expensive ones, from 0.99 to 1000.98."""
    band = _PRICE_BANDS[integers_at(sequence_seed(seed, "price band"), numbers, below=_PRICE_BANDS.size)]
    within = integers_at(sequence_seed(seed, "price"), numbers, below=1 << 30)
    cents: NDArray[np.int64] = (within * band >> 30) + _LOWEST_PRICE
    return cents
