"""HYBRIDJOIN (§4): the index finds the page of the oldest tuple, and the page serves all tuples that wait for it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from semistream.joins.families.oldest_first import OldestFirstJoin

__all__ = ["HybridJoin"]


class HybridJoin(OldestFirstJoin):
    """Each iteration loads the partition of R for the oldest waiting key, and probes ``H_S`` with all of its rows.

    Every read serves at least one tuple, and frequent keys share reads. The join never waits for the stream: without
    input it continues until ``H_S`` is empty.

    Parameters
    ----------
    partition_pages
        Pages of a partition, read together (the paper's disk buffer ``d``). Several pages pay off if seeks are
        expensive or tuples wait for most pages of R; otherwise one page is best. By default it adapts.
    in_flight
        Partitions read together: an iteration then serves this many of the oldest keys instead of one, each with its
        own read. 1, with ``partition_pages`` given, is exactly the paper's loop.
    seek_pages
        Seek time of the device, in pages of transfer (``S / T`` with ``in_flight`` reads in flight); only for the
        adaptive partition.
    disk_share
        Maximum share of the memory for pages. A higher value makes iterations longer, so that their fixed work costs
        less per tuple. A lower value leaves more memory for ``H_S``, so that more tuples share a read.

    Notes
    -----
    Differences from the paper. A key that R does not have leaves after its partition was read (the published algorithm
    would load this partition forever). A key with rows in several pages is served in the iteration in which it is among
    the oldest, which reads all of them. With ``in_flight`` above 1, stream tuples are admitted after this many reads
    instead of after each. The paper sets ``d`` by tuning; here it can adapt to the number of waiting keys.
    """

    id = "hybridjoin"
    title = "HYBRIDJOIN: the oldest key's page serves all waiting tuples"
    when = "Some skew, an index, and little memory. Its code is short and a good one to read first."
    place = 50
    calibrated = True

    def open_parts(self) -> None:
        self._open_disk_buffer(self._disk_bytes())
        self._open_table(self.budget.free)

    def absorb(self) -> None:
        self._admit(self.table.free)

    def turn(self) -> Iterator[pa.RecordBatch]:
        self.absorb()
        yield from self._serve_oldest()
        self.absorb()
