"""A product catalogue as shops keep it: names, brands, categories, colours, prices, dates and descriptions.

Values repeat as in real master data: few colours and currencies, hundreds of categories, thousands of brands with a
skew, prices that end in .99 or .49, dates of some years, a column that is nearly always NULL, and descriptions made of
phrases. Rows that are next to each other have nothing in common, so compression must find the repetition in the
columns. A row is a function of its number.

Example
-------
>>> table = CatalogueTable(rows=1000, stride=2).batch(0, 3)
>>> table["product_id"].to_pylist(), table["name"][0].as_py()
([0, 2, 4], 'Nezebe Compact Power Bank 1 l')
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from semistream.core.arguments import check_at_least
from semistream.workloads.keys.draws import integers_at, sequence_seed
from semistream.workloads.made_columns import decimals
from semistream.workloads.table_source import BATCH_ROWS, TableSource, batch_ranges, check_batch_rows

__all__ = ["CatalogueTable"]

_DEPARTMENTS = {
    "Home & Kitchen": "Kettle|Toaster|Frying Pan|Cutting Board|Storage Jar|Coffee Grinder|Water Filter|Table Lamp",
    "Garden": "Garden Hose|Plant Pot|Hedge Trimmer|Bird Feeder|Rain Barrel|Parasol|Fire Bowl|Lawn Rake",
    "Electronics": "Headphones|Charging Cable|Power Bank|Wireless Mouse|Webcam|USB Hub|Smoke Detector|Radio Alarm",
    "Clothing": "Rain Jacket|Wool Scarf|Running Socks|Work Trousers|Winter Gloves|Cotton Shirt|Sun Hat|Belt",
    "Toys & Games": "Building Blocks|Jigsaw Puzzle|Board Game|Plush Bear|Kite|Model Train|Playing Cards|Scooter",
    "Office": "Fountain Pen|Notebook A5|Desk Tray|Paper Shredder|Whiteboard|Stapler|Label Printer|Office Chair",
    "Tools": "Cordless Drill|Torque Wrench|Spirit Level|Tool Box|Angle Grinder|Screwdriver Set|Work Light|Clamp",
    "Sports": "Yoga Mat|Bicycle Pump|Swim Goggles|Tennis Balls|Camping Stove|Sleeping Bag|Climbing Rope|Dumbbell",
}
_SECTIONS = ("Basics", "Premium", "Outdoor", "Family", "Professional", "Travel", "Seasonal", "Spare Parts")
_ADJECTIVES = (
    "Classic", "Compact", "Foldable", "Light", "Heavy Duty", "Smart", "Silent", "Solid", "Flexible", "Waterproof",
    "Eco", "Slim", "Deluxe", "Original", "Junior", "Pro",
)  # fmt: skip
_SIZES = (
    "XS", "S", "M", "L", "XL", "0,5 l", "1 l", "1,7 l", "2,4 l", "20 cm", "24 cm", "28 cm", "60 x 40 cm", "1 m", "2 m",
    "5 m", "Set of 2", "Set of 4", "Set of 10", "100 g", "250 g", "1 kg", "18 V", "230 V",
)  # fmt: skip
_COLOURS = (
    "black",
    "white",
    "silver",
    "anthracite",
    "red",
    "blue",
    "navy",
    "green",
    "olive",
    "beige",
    "yellow",
    "pink",
)
_PHRASES = (
    "Easy to clean and safe in the dishwasher.", "Made of recycled material.", "With a guarantee of five years.",
    "Tested by an independent laboratory.", "The handle stays cool.", "Delivered without plastic packaging.",
    "Suitable for daily use at home and on the way.", "Spare parts are available for ten years.",
    "With anti-slip feet.", "Also available in other colours.", "The design has won several awards.",
    "Takes little space in any cupboard.", "For beginners and professionals.", "Ready to use in a few minutes.",
    "Battery not included.", "Free of harmful substances.", "Switches off automatically.", "Robust and durable.",
    "An ideal present.", "Please note the instructions for care.", "With a practical carrying bag.", "Made in Europe.",
    "Resistant to frost and heat.", "Our customers' favourite.",
)  # fmt: skip
_BRANDS = 4_000
_FIRST_DAY, _DAYS = 16_436, 3_600  # 2015-01-01 and ten years
_MICROSECONDS = 86_400_000_000
_GONE = 33  # one product in 33 is discontinued
_PLAIN = 20  # one product in 20 has no colour


@dataclass(frozen=True, slots=True)
class CatalogueTable(TableSource):
    """``rows`` products. Their keys are 0, ``stride``, 2 · ``stride``, …; about 220 bytes of values per row."""

    rows: int
    stride: int = 1
    key: str = "product_id"
    batch_rows: int = BATCH_ROWS
    seed: int = 0

    def __post_init__(self) -> None:
        check_batch_rows(self.batch_rows)
        check_at_least(1, rows=self.rows, stride=self.stride)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([
            pa.field(self.key, pa.int64()),
            pa.field("sku", pa.string()),
            pa.field("name", pa.string()),
            pa.field("brand", pa.string()),
            pa.field("category", pa.string()),
            pa.field("colour", pa.string()),
            pa.field("price", pa.decimal128(12, 2)),
            pa.field("currency", pa.string()),
            pa.field("weight_g", pa.int32()),
            pa.field("stock", pa.int32()),
            pa.field("listed_on", pa.date32()),
            pa.field("discontinued_on", pa.date32()),
            pa.field("updated_at", pa.timestamp("us", tz="UTC")),
            pa.field("description", pa.string()),
        ])  # fmt: skip

    @property
    def row_count(self) -> int:
        return self.rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        for start, count in batch_ranges(self.rows, self.batch_rows):
            yield self.batch(start, count)

    def batch(self, start: int, count: int) -> pa.RecordBatch:
        """Return the products ``start`` … ``start + count - 1``."""
        if start < 0 or count < 0 or start + count > self.rows:
            raise ValueError(f"rows {start} to {start + count} are not in a table of {self.rows} rows")
        at = np.arange(start, start + count, dtype=np.int64)
        kind, section = self._draw("kind", at, len(_nouns())), self._draw("section", at, len(_SECTIONS))
        brand = _brands(self.seed).take(pa.array(self._skewed("brand", at, _BRANDS)))
        noun = pa.array(_nouns()).take(pa.array(kind))
        size = pa.array(_SIZES).take(pa.array(self._draw("size", at, len(_SIZES))))
        adjective = pa.array(_ADJECTIVES).take(pa.array(self._draw("adjective", at, len(_ADJECTIVES))))
        listed = _FIRST_DAY + _DAYS - 1 - self._skewed("listed", at, _DAYS)
        updated = np.minimum(listed + self._skewed("updated", at, 400), _FIRST_DAY + _DAYS)
        time = updated * _MICROSECONDS + self._draw("time", at, 86_400) * 1_000_000
        gone = listed + self._draw("gone on", at, 1_000)
        columns = [
            pa.array(at * self.stride),
            pc.binary_join_element_wise(_prefixes().take(pa.array(kind)), _digits(at), "-"),
            pc.binary_join_element_wise(brand, adjective, noun, size, " "),
            brand,
            _categories().take(pa.array(kind * len(_SECTIONS) + section)),
            pa.array(_COLOURS).take(
                pa.array(self._skewed("colour", at, len(_COLOURS)), mask=self._draw("plain", at, _PLAIN) == 0)
            ),
            decimals(self._prices(at), 12, 2),
            pa.array(["EUR", "USD", "GBP"]).take(pa.array(self._skewed("currency", at, 30) // 10)),
            pa.array(((self._skewed("weight", at, 2_000) + 1) * 10).astype(np.int32)),
            pa.array(self._skewed("stock", at, 5_000).astype(np.int32)),
            pa.array(listed.astype(np.int32)).cast(pa.date32()),
            pa.array(gone.astype(np.int32), mask=self._draw("gone", at, _GONE) > 0).cast(pa.date32()),
            pa.array(time).cast(pa.timestamp("us", tz="UTC")),
            self._descriptions(at, adjective, noun),
        ]
        return pa.record_batch(columns, schema=self.schema)

    def _draw(self, purpose: str, at: NDArray[np.int64], below: int) -> NDArray[np.int64]:
        return integers_at(sequence_seed(self.seed, "catalogue", purpose), at, below)

    def _skewed(self, purpose: str, at: NDArray[np.int64], below: int) -> NDArray[np.int64]:
        """Draw below ``below`` small values more often: the cube of a uniform fraction."""
        fraction = self._draw(purpose, at, 1 << 20) / float(1 << 20)
        skewed: NDArray[np.int64] = (below * fraction**3).astype(np.int64)
        return skewed

    def _prices(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        whole = 1 + self._skewed("price", at, 500)
        ends: NDArray[np.int64] = np.array([99, 99, 99, 95, 49, 0], np.int64)[self._draw("cents", at, 6)]
        return whole * 100 + ends

    def _descriptions(self, at: NDArray[np.int64], adjective: pa.Array, noun: pa.Array) -> pa.Array:
        phrases = pa.array(_PHRASES)
        two = [phrases.take(pa.array(self._draw(f"phrase {i}", at, len(_PHRASES)))) for i in range(2)]
        what = pc.binary_join_element_wise("Your new", pc.ascii_lower(adjective), pc.ascii_lower(noun), " ")
        return pc.binary_join_element_wise(pc.binary_join_element_wise(what, "", "."), *two, " ")


@cache
def _nouns() -> tuple[str, ...]:
    return tuple(noun for nouns in _DEPARTMENTS.values() for noun in nouns.split("|"))


@cache
def _categories() -> pa.Array:
    """Return a path for each noun and section."""
    paths = [(department, noun) for department, nouns in _DEPARTMENTS.items() for noun in nouns.split("|")]
    return pa.array([f"{department} > {noun} > {section}" for department, noun in paths for section in _SECTIONS])


@cache
def _prefixes() -> pa.Array:
    return pa.array([noun[:3].upper() for noun in _nouns()])


@cache
def _brands(seed: int) -> pa.Array:
    """Return names of two to four syllables."""
    syllables = [first + second for first in "bdfgklmnprstvz" for second in ("a", "e", "i", "o", "u", "en", "or")]
    number = np.arange(_BRANDS, dtype=np.int64)
    parts = [
        pa.array(syllables).take(pa.array(integers_at(sequence_seed(seed, "syllable", i), number, len(syllables))))
        for i in range(3)
    ]
    return pc.utf8_capitalize(pc.binary_join_element_wise(*parts, ""))


def _digits(at: NDArray[np.int64]) -> pa.Array:
    return pc.utf8_lpad(pc.cast(pa.array(at), pa.string()), 9, "0")
