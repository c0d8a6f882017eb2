"""The interface of R that updates use, implemented by `Relation`."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.arrays import Bytes, Ints
from semistream.relation.changes.overlay import Overlay
from semistream.relation.devices.device import Device
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.keys.valid_times import ValidTimes
from semistream.relation.pages.page_index import Index
from semistream.relation.pages.page_layout import PageLayout
from semistream.relation.rows.row_codec import RowCodec

__all__ = ["State", "Updatable"]


class State(NamedTuple):
    """The part of R that updates change, at one revision.

    Another update may be installed while one is prepared.
    """

    revision: int
    indexes: list[Index]
    overlay: Overlay
    row_count: int
    unique: bool


class Updatable(Protocol):
    """R as an update sees it, without changing it: the format of its rows and pages, and where they are."""

    schema: pa.Schema
    key: KeyCodec
    codec: RowCodec
    layout: PageLayout
    device: Device
    indexes: list[Index]
    shard_bases: NDArray[np.int64]
    shard_count: int
    overlay: Overlay
    clustered: bool
    times: ValidTimes | None

    @property
    def page_count(self) -> int:
        """Pages of all shards."""
        ...

    @property
    def table_bytes(self) -> int:
        """Bytes of the map of pages that updates have moved, and of tables for packed columns."""
        ...

    def home(self, keys: Ints) -> NDArray[np.int32]:
        """Return the position in `indexes` of each key's shard, or -1 if that shard is not open."""
        ...

    def frames(self, count: int) -> Bytes:
        """Return frames for pages."""
        ...
