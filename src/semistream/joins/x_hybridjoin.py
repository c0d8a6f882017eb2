"""X-HYBRIDJOIN (Algorithm 1, §4): HYBRIDJOIN with the most frequent pages of R kept in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.core.arguments import check_at_least
from semistream.core.arrays import Bytes, Ints
from semistream.joins.families.oldest_first import OldestFirstJoin, OldestFirstView
from semistream.joins.interface.stream_buffer import Tuples
from semistream.relation.changes.overlay import Change
from semistream.relation.relation import Relation
from semistream.relation.rows.selection import take_rows
from semistream.structures.lookup import Matches
from semistream.structures.pinned_pages import PinnedLayout, PinnedPages

__all__ = ["XHybridJoin"]


_PORTION = 1 << 14  # maximum tuples looked up together in the pinned pages


class XHybridJoin(OldestFirstJoin):
    """Divides the disk buffer: pages that stay, for frequent keys, and a swappable part for all other keys.

    Each iteration first joins the non-swappable part with the stream, then loads the partition of the oldest waiting
    key into the swappable part, as HYBRIDJOIN does. The more skewed the stream, the larger the share of tuples that
    need no read.

    Parameters
    ----------
    pinned_pages
        Pages of the non-swappable part (``l``). More pages serve more of the stream, each less than the one before, and
        leave less memory for waiting tuples. By default a quarter of the memory; the paper's untuned rule is the same
        number as ``partition_pages``. 0 switches this part off, which gives HYBRIDJOIN.
    partition_pages
        Pages of a partition, the swappable part (``k``). By default it adapts, see `OldestFirstJoin`.
    by_frequency
        R is stored by access frequency, the most frequent rows first (built with ``clustered=False`` from rows in this
        order), as the paper requires: its first pages are loaded once and kept. Otherwise no order is required, and the
        pages that served the most tuples so far are kept.
    scan_pinned
        Match the non-swappable part as the paper does: every tuple enters ``H_S``, and each iteration probes it with
        all pinned rows. Only with ``by_frequency``, and only for comparison: it is never faster.
    repin_every
        Stream tuples after which the pinned pages are again compared with the others; counts are halved every fourth
        time. A lower value follows a changing stream faster; a higher one estimates a steady stream better. By default
        32 per pinned page. Not with ``by_frequency``.
    in_flight
        Partitions read together, as in HYBRIDJOIN.
    seek_pages
        Seek time of the device in pages of transfer, as in HYBRIDJOIN.

    Notes
    -----
    The first inner loop of the paper (lines 8 to 14) probes ``H_S`` with every row of the non-swappable part; so does
    ``scan_pinned``. A tuple that has been through this loop once cannot match a row of this part any more. So without
    ``scan_pinned`` only the tuples that arrived since the last iteration are looked up, in a hash table of the part's
    rows: one look-up per tuple instead of one per pinned row (``w·c_H`` instead of ``d_N·c_H`` in Eq. 5; `stats.probes`
    counts the look-ups). Tuples that match leave before they enter ``H_S``, so they do not cost ``c_A`` and ``c_E``.

    Other differences are those of HYBRIDJOIN. Pages to pin are copied when they were read for a waiting tuple, and
    never read for pinning. A key with rows in several pages is served by reads; pinned pages of it are not read again.

    Examples
    --------
    >>> import pyarrow as pa, tempfile, semistream
    >>> products = pa.table({"id": range(1000), "name": [f"product {i}" for i in range(1000)]})
    >>> sales = pa.record_batch({"id": [3, 5, 3, 3, 700, 5] * 50, "amount": range(300)})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     relation = semistream.Relation.build(products, f"{folder}/products", key="id", page_size=512)
    ...     join = semistream.create("x_hybridjoin", relation, on="id", memory="1MB")
    ...     rows = sum(batch.num_rows for half in (sales[:100], sales[100:]) for batch in join.process([half]))
    >>> rows, join.stats.cache_hits
    (300, 200)
    """

    id = "x_hybridjoin"
    title = "X-HYBRIDJOIN: HYBRIDJOIN with frequent pages pinned"
    when = "Skew with frequent keys together in R, by age or by popularity."
    place = 60

    def __init__(
        self,
        relation: Relation,
        *,
        pinned_pages: int | None = None,
        by_frequency: bool = False,
        scan_pinned: bool = False,
        repin_every: int | None = None,
        **options: Any,
    ) -> None:
        check_at_least(0, pinned_pages=pinned_pages)
        check_at_least(1, repin_every=repin_every)
        self._pinned_pages = None if pinned_pages is None else min(pinned_pages, relation.page_count)
        if scan_pinned and not by_frequency:
            raise ValueError("scan_pinned=True works only with by_frequency=True; give both, or neither")
        self._by_frequency = by_frequency
        self.scans_pinned = scan_pinned
        self._repin_every = repin_every
        self._miss_share = 1.0
        super().__init__(relation, **options)

    def least_bytes(self) -> int:
        least = 1 if self._pinned_pages is None else self._pinned_pages
        counters = 0 if self._by_frequency else 4
        return super().least_bytes() + PinnedLayout.of(self.relation).bytes_for(least) + counters

    def open_parts(self) -> None:
        relation = self.relation
        spare = self.budget.free - self.least_bytes()
        whole = self.budget.free
        spare -= self._open_disk_buffer(min(spare, int(whole * self._disk_share)))
        pages = self._pinned_pages
        if pages is None:
            layout = PinnedLayout.of(relation)
            least = layout.bytes_for(1)
            pages = max(1, min(layout.fitting(least + min(spare, whole // 4)), relation.page_count))
            spare -= layout.bytes_for(pages) - least
        # A counter for every page of R, unless this needs more than a small part of the memory.
        counters = max(1, min(relation.page_count, min(spare, whole // 32) // 4))
        self.pinned = PinnedPages(
            relation, pages, counters=None if self._by_frequency else counters, period=self._repin_every
        )
        self.budget.reserve("pinned pages", self.pinned.nbytes)
        if self._by_frequency:
            self.pinned.load(self._first_pages(pages))
        self._open_table(self.budget.free)

    def _first_pages(self, count: int) -> Ints:
        """Return the pages with the most frequent rows: the first pages, evenly from all shards."""
        bases = self.relation.shard_bases
        depth = np.concatenate([np.arange(size) for size in np.diff(bases)])
        return np.sort(np.argsort(depth, kind="stable")[:count])

    def absorb(self) -> None:
        if self.scans_pinned:  # fill the table before an iteration
            self._admit(self.table.free)

    def turn(self) -> Iterator[pa.RecordBatch]:
        if self.scans_pinned:
            self._admit(self.table.free)
            yield from self._serve_all_of_pinned()
            yield from self._serve_oldest()
            return
        crowded = 2 * self.stream.nbytes > self.stream.limit
        yield from self._serve_pinned()
        if crowded and not len(self.stream) and self.table.free and not self.closing:
            return  # the stream buffer was too full to accept tuples: accept more before reading
        yield from self._serve_oldest()

    def _serve_pinned(self) -> Iterator[pa.RecordBatch]:
        """Join arrived tuples with the non-swappable part, and admit the others to ``H_S`` (lines 4 to 14)."""
        while len(self.stream) and self.table.free:
            # Take enough tuples for the expected misses to fill the free room of ``H_S``.
            for part in self.stream.take(min(_PORTION, int(self.table.free / self._miss_share))):
                rows = self.rows_of(part.batch)
                held, matches = self.pinned.look_up(part.keys, self.pairs_at_once)
                for match in matches:
                    if self._on_match is not None:
                        match = _by_key(match)
                    stream = rows.at(match.positions)
                    yield from self.joined(match.keys, stream, match.data, match.starts, match.flags)
                hits = int(np.count_nonzero(held))
                self.tally.probes += held.size
                self.tally.cache_hits += hits
                self.tally.rows_done += hits
                self.pinned.pass_time(held.size)
                weight = held.size / (held.size + _PORTION)
                self._miss_share += weight * (max(1.0 - hits / held.size, 0.05) - self._miss_share)
                if hits < held.size and not self._let_in(part, np.flatnonzero(~held)):
                    return
            if self.table.free < _PORTION // 4:
                return  # too little room for another pass

    def _serve_all_of_pinned(self) -> Iterator[pa.RecordBatch]:
        """Probe ``H_S`` with every pinned row, as the paper does (lines 8 to 14)."""
        self._serving = True
        try:
            for frames in self.pinned.runs():
                for slots, starts, flags in self._probed(frames, np.empty(0, np.int64), leave=True):
                    yield from self._joined_slots(slots, frames, starts, flags)
                    gone = self.table.leaving(slots, flags)
                    self.tally.cache_hits += gone.size
                    self._let_go(gone)
        finally:
            self._serving = False

    def _let_in(self, part: Tuples, others: Ints) -> bool:
        """Move tuples into ``H_S``; return whether there was room for all."""
        if others.size < len(part.keys):
            part = Tuples(part.keys[others], take_rows(part.batch, others))
        count = self.table.insert(part.keys, part.batch)
        self.tally.appended += count
        self.stream.put_back(Tuples(part.keys[count:], part.batch.slice(count)))
        return count == len(part.keys)

    def _fetched(self, pages: Ints) -> Iterator[tuple[Ints, Bytes]]:
        """Get pages into the swappable part; pinned pages are copied, not read.

        Tuples may wait for a pinned page: if their key also has rows in other pages, or if they were put back into the
        stream buffer before the page was pinned.
        """
        held = self.pinned.frames_of(pages)
        # Pinned pages first, because pages that are read may replace them.
        here, at = pages[held >= 0], held[held >= 0]
        for begin in range(0, here.size, len(self._frames)):
            chunk = here[begin : begin + len(self._frames)]
            frames = self._frames[: chunk.size]
            self.pinned.copy(at[begin : begin + chunk.size], frames)
            yield chunk, frames
        yield from super()._fetched(pages[held < 0])

    def _served(self, pages: Ints, frames: Bytes, met: Ints) -> None:
        if not self._by_frequency:
            self.pinned.consider(pages, frames, met)
            self.tally.recorded += int(met.sum())

    def after_update(self, change: Change) -> None:
        """Unpin pages that have changed."""
        self.pinned.forget(change.pages)

    def view(self) -> OldestFirstView:
        return dataclasses.replace(super().view(), pinned_for_good=self.pinned.capacity if self._by_frequency else None)

    def check_parts(self) -> None:
        super().check_parts()
        self.pinned.check()


def _by_key(match: Matches) -> Matches:
    """Sort pairs by key: an observer needs the pairs of a key to be adjacent."""
    order = np.argsort(match.keys, kind="stable")
    return Matches(match.positions[order], match.data, match.starts[order], match.flags[order], match.keys[order])
