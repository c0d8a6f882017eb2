"""HYBRIDJOIN (§4): the index finds the page of the oldest tuple, and the page serves all who wait for it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from semistream.joins.families.oldest_first import OldestFirstJoin

__all__ = ["HybridJoin"]


class HybridJoin(OldestFirstJoin):
    """Each turn loads the partition of R that the oldest waiting key needs and probes all of it in ``H_S``.

    Every read serves at least one tuple, frequent keys share reads, and the stream is never waited for: with no
    input the join works on until ``H_S`` is empty.

    Parameters
    ----------
    partition_pages
        Pages of a partition, read together (the paper's disk buffer ``d``). On a disk with a costly seek, or when
        most pages of R have tuples waiting for them, more pays; otherwise a page is best. By default it adapts.
    in_flight
        Partitions read at once: the turn then serves that many oldest keys instead of one, each by its own
        read. 1, with ``partition_pages`` given, is the paper's loop to the letter.
    seek_pages
        Seek time of the device, in pages of transfer (``S / T`` with as many reads in flight); only for the
        adaptive partition.
    disk_share
        Share of the memory for pages, as many as ``in_flight`` asks for. More makes turns longer, and the work of a
        turn beside its reads cheaper for each tuple; less leaves more to ``H_S``, where more tuples then share a read.

    Notes
    -----
    Departures from the paper. A key that R does not have leaves after its partition was read (as printed, the
    algorithm would load that partition for ever). A key with rows in several pages is served by its own turn,
    which reads them all. With ``in_flight`` above 1, stream tuples are admitted after that many reads instead of
    after each. The paper's ``d`` is fixed by tuning; here it may follow the number of keys that wait.
    """

    id = "hybridjoin"
    title = "HYBRIDJOIN: the oldest key's page, for all who wait"
    when = "Some skew, an index, and little memory. Short, and good to read first."
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
