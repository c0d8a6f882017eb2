"""What a packed relation gains: its bytes and the predicted rate, compared with the same rows unpacked."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from semistream.core.errors import BudgetTooSmallError
from semistream.costs import Prediction, Setting, costs_of
from semistream.relation.pages.page_layout import HEADER, PageLayout
from semistream.relation.relation import Relation
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.storage.manifest import PLAIN_ROW_BYTES
from semistream.structures.hot.hot_tuples import HotTuples
from semistream.tuner.search import best_split
from semistream.tuner.tuning import useful_memory

__all__ = ["PackingGain", "packing_gain", "plain_pages", "unpacked"]


@dataclass(frozen=True)
class PackingGain:
    """A packed relation compared with the same rows unpacked."""

    algorithm: str
    """The join whose rates these are."""
    stored_bytes: int
    plain_bytes: int
    """Bytes of pages; those of unpacked rows are an estimate from the rows of the build."""
    rate: float
    """Predicted tuples per second."""
    plain_rate: float | None
    """The same if rows were unpacked; None if the memory would be too small then."""

    def as_dict(self) -> dict[str, Any]:
        """Return everything as numbers and text, for JSON."""
        return dataclasses.asdict(self)


def plain_pages(relation: Relation) -> int | None:
    """Return approximately how many pages R would have if no column were packed; None if no column is packed.

    The mean row is that of the build; see `PLAIN_ROW_BYTES`.
    """
    known = relation.stored.properties.get(PLAIN_ROW_BYTES) if relation.codec.packings else None
    if known is None:
        return None
    row = float(known)
    # On average, the space of half a row stays free at the end of a page.
    rows_per_page = max(1.0, (relation.page_bytes * relation.stored.fill - HEADER - row / 2) / row)
    return max(1, math.ceil(relation.row_count / rows_per_page))


def unpacked(relation: Relation, setting: Setting) -> Setting | None:
    """Return the setting of a relation as it would be if no column were packed; None if no column is packed."""
    pages = plain_pages(relation)
    if pages is None:
        return None
    codec = RowCodec(relation.codec.schema)
    layout = PageLayout(relation.page_bytes, 0 if codec.variable else codec.stride)
    tables = 0 if relation.packing is None else relation.packing.nbytes
    return setting.replace(
        pages=pages,
        index_bytes=round((setting.index_bytes - tables) * pages / setting.pages),
        cached_bytes=HotTuples.bytes_per_tuple(codec, layout.mean_row(relation.page_bytes, relation.row_count / pages)),
        page_rows=None if codec.variable else layout.capacity(relation.device.frame_bytes),
    )


def packing_gain(relation: Relation, setting: Setting, best: Prediction, memory: int) -> PackingGain | None:
    """Return what a join gains from packing; None if the relation is not packed.

    Parameters
    ----------
    setting, best
        The relation's setting, and the prediction for the join.
    memory
        Bytes of the budget: the same for packed and unpacked rows.
    """
    plain = unpacked(relation, setting)
    if plain is None:
        return None
    try:
        rate = best_split(costs_of(best.algorithm), plain, useful_memory(plain, memory)).rate
    except BudgetTooSmallError:
        rate = None
    return PackingGain(
        best.algorithm, setting.pages * setting.page_bytes, plain.pages * plain.page_bytes, best.rate, rate
    )
