"""What a join is like, said by its class, for those who price, tune and measure joins without knowing each."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar

__all__ = ["Overlap", "Traits"]


class Overlap(Enum):
    """What goes on at the same time while a join works."""

    NOTHING = "one thing after the other"
    PHASES = "tuples are looked up in the cache while the join behind reads and probes"
    PHASES_AND_READS = "and pages are read while others are probed"


class Traits:
    """Class attributes that a join sets where it differs from most."""

    id: ClassVar[str]
    """Name in the registry."""
    title: ClassVar[str]
    """One line for tables."""
    when: ClassVar[str] = ""
    """When to choose it, in one line; tables show the title if it is empty."""
    place: ClassVar[int] = 1000
    """Where it stands in lists: the joins of the papers first, in the order in which they build on each other."""
    listed: ClassVar[bool] = True
    """Whether it is a join to choose, and not only a part of one."""
    uses_index: ClassVar[bool] = True
    """Whether the index of R is held, and so counted."""
    bounded: ClassVar[bool] = True
    """Whether the join keeps to its budget."""
    bounded_wait: ClassVar[bool] = True
    """Whether every tuple is served in the end, however long the stream is."""
    deterministic: ClassVar[bool] = True
    """Whether the same stream gives results in the same order; threads do not."""
    overlap: ClassVar[Overlap] = Overlap.NOTHING
    """What it does at the same time."""
    scans: ClassVar[bool] = False
    """Whether R is read in a circle, whatever the stream asks for."""
    waits: ClassVar[bool] = True
    """Whether tuples wait for others that need the same page; if not, each is read for by itself."""
    mixes: ClassVar[bool] = False
    """Whether tuples with and without a partner leave in one batch, unless it is told to keep them ``apart``."""
    in_order: ClassVar[bool] = False
    """Whether results leave in the order of the stream, unless tuples are kept ``apart`` or may wait."""
    keeps_cache: ClassVar[bool] = False
    """Whether what it has learned of the stream can lie in files (``arrays``), for the next process to go on with."""
    makes_results: ClassVar[bool] = True
    """Whether pairs become batches; a simulation, where nobody reads them, only counts them."""
    stands_behind: ClassVar[bool] = True
    """Whether another stage may hand tuples on to it: it takes them from the stream buffer, and shows all matches."""
    default_for: ClassVar[tuple[str, ...]] = ()
    """Conditions for which ``"auto"`` takes it without comparing, on a device that does not seek. For other conditions
    ``"auto"`` leaves such a join out; a join without an entry here is compared wherever it can be used."""
    calibrated: ClassVar[bool] = False
    """Whether ``tune --calibrate`` measures it as a whole: joins that compete on a device that does not seek."""
    for_batches: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Options for a join that is drained after every batch, as on Spark; those that a user gives come first."""
