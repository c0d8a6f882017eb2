"""Reads every page of a relation and reports damaged pages.

A device fails a call if one page is bad. Here all other pages are still checked, so that one pass reports everything
that must be restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from semistream.core.arrays import Bytes, Ints
from semistream.core.errors import CorruptPageError
from semistream.relation.damage.key_order import KeyOrder
from semistream.relation.damage.verify_files import LeafSums, bad_manifests
from semistream.relation.devices.file_device import Device
from semistream.relation.open_relation import OpenRelation
from semistream.relation.pages.page_index import ClusteredIndex, ScatteredIndex
from semistream.relation.pages.page_layout import HEADER, page_rows

__all__ = ["Fault", "find_faults", "pages_to_check"]


_CALL_BYTES = 8 << 20  # bytes of pages read at a time


@dataclass(frozen=True)
class Fault:
    """Something that is wrong with a page of a file, or (page -1) with a whole file."""

    file: str
    page: int
    message: str


def pages_to_check(relation: OpenRelation) -> int:
    """Return the number of pages that `find_faults` reads."""
    leaves = (index.device.page_count for index in relation.indexes if isinstance(index, ScatteredIndex))
    return relation.page_count + sum(leaves)


def find_faults(relation: OpenRelation, read: Callable[[int], None] = lambda _: None) -> Iterator[Fault]:
    """Yield every page that fails its checksum, and every contradiction between pages, index and manifest.

    Parameters
    ----------
    relation
        All of its shards are read, including leaves of a scattered index.
    read
        Called with the number of pages read since the previous call.

    Examples
    --------
    >>> import pyarrow as pa, tempfile
    >>> from semistream import Relation
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     products = pa.table({"id": range(1000)})
    ...     with Relation.build(products, f"{folder}/products", key="id", page_size=512) as relation:
    ...         with open(next(relation.path.glob("*.pages")), "r+b") as file:
    ...             _ = file.seek(3 * 512 + 100), file.write(b"!")
    ...         [fault.page for fault in find_faults(relation)]
    [3]
    """
    if relation.path is not None:
        for file, message in bad_manifests(relation.path):
            yield Fault(str(file), -1, message)
    rows = 0
    bad = 0
    first, order = _first_keys(relation), KeyOrder(relation)
    sums = [LeafSums(index) for index in relation.indexes if isinstance(index, ScatteredIndex)]
    for pages, frames, faults in _chunks(relation.device):
        yield from faults
        bad += len(faults)
        rows += int(page_rows(frames).sum())
        read(pages.size)
        if sums and not faults:
            shard = np.searchsorted(relation.shard_bases, pages, side="right") - 1
            for number in np.unique(shard):
                here = shard == number
                numbers = pages[here] - relation.shard_bases[number]
                sums[number].add_pages(numbers, frames[here], relation.layout.stride)
        if not faults:
            order.see(pages, frames)
            if first is not None:
                yield from _misindexed(relation, pages, frames, first)
    if not bad:
        for message in order.faults():
            yield Fault(str(relation.path), -1, message)
    if not bad and rows != relation.row_count:
        message = f"the pages hold {rows:,} rows, and the manifest says {relation.row_count:,}"
        yield Fault(str(relation.path), -1, f"{message}; build the relation again")
    for number, index in enumerate(relation.indexes):
        if isinstance(index, ScatteredIndex):
            for pages, frames, faults in _chunks(index.device):
                yield from faults
                bad += len(faults)
                read(pages.size)
                if not faults:
                    sums[number].add_leaves(pages, frames)
            if not bad and (what := sums[number].finish()) is not None:
                message = f"the leaves of shard {number} of {relation.path} {what}"
                yield Fault(str(relation.path), -1, f"{message}; build the relation again")


def _chunks(device: Device) -> Iterator[tuple[Ints, Bytes, list[Fault]]]:
    """Yield page ids, the frames of the good pages, and the faults of the others."""
    frames = device.allocate(max(1, min(device.page_count, _CALL_BYTES // device.frame_bytes)))
    for begin in range(0, device.page_count, len(frames)):
        pages = np.arange(begin, min(begin + len(frames), device.page_count))
        try:
            device.read(pages, frames[: pages.size])
            yield pages, frames[: pages.size], []
        except CorruptPageError:
            good, faults = 0, []
            for page in pages:  # rare, so one at a time
                try:
                    device.read(np.array([page]), frames[good : good + 1])
                    good += 1
                except CorruptPageError as error:
                    faults.append(Fault(error.file, error.page, str(error)))
            yield pages, frames[:good], faults


def _first_keys(relation: OpenRelation) -> Ints | None:
    """Return the first key of each page according to the index, or None if R is not clustered."""
    firsts = [index.first for index in relation.indexes if isinstance(index, ClusteredIndex)]
    if not firsts or len(firsts) != len(relation.indexes):
        return None
    first = np.concatenate(firsts)
    if relation.page_order.size == 0 and first.size == relation.page_count:
        return first
    by_id = np.zeros(relation.page_count, np.int64)  # a page that is not in the index has no rows
    if relation.page_order.size:
        by_id[relation.page_order] = first
    return by_id


def _misindexed(relation: OpenRelation, pages: Ints, frames: Bytes, first: Ints) -> Iterator[Fault]:
    found = frames[:, HEADER : HEADER + 8].copy().view(np.int64)[:, 0]
    wrong = np.flatnonzero((page_rows(frames) > 0) & (found != first[pages]))
    for page in pages[wrong]:
        message = f"page {page} of {relation.path} is intact, but the index gives another key for it"
        yield Fault(str(relation.path), int(page), f"{message}; build the relation again")
