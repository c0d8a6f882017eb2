"""The partition-based join (Chakraborty & Singh, cited in X-HYBRIDJOIN §2): tuples wait in a list per partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from semistream.core.arguments import check_at_least
from semistream.core.arrays import Bytes, Ints, Slots
from semistream.joins.families.holding import LEAST_TUPLES, HoldingJoin
from semistream.joins.interface.leaving import portions
from semistream.joins.interface.stream_buffer import Tuples
from semistream.relation.changes.overlay import Change
from semistream.relation.pages.page_layout import LAST, find_rows
from semistream.relation.relation import Relation
from semistream.structures.lookup import PageLookup
from semistream.structures.wait_buffer import WaitBuffer

__all__ = ["PartitionLayout", "PartitionedJoin"]


class PartitionLayout(NamedTuple):
    """How the memory is divided between pages of partitions, places for all partitions, and waiting tuples."""

    page_count: int
    """Pages of R."""
    frame_bytes: int
    tuple_bytes: int
    """Bytes of a waiting tuple."""

    def sizes(self, given: int | None) -> list[int]:
        """Return the sizes of partitions to choose from, in pages."""
        most = max(1, self.page_count)
        return [1 << power for power in range(most.bit_length())] if given is None else [min(given, most)]

    def places(self, pages: int) -> int:
        """Return how many partitions of ``pages`` pages R has."""
        return -(-self.page_count // pages)

    def needed(self, pages: int) -> int:
        """Return the minimum bytes with partitions of ``pages`` pages: one partition, a look-up page, a few tuples."""
        fixed = WaitBuffer.fixed_bytes(self.places(pages))
        return (pages + 1) * self.frame_bytes + fixed + LEAST_TUPLES * self.tuple_bytes

    def least(self, given: int | None) -> int:
        """Return the minimum bytes for any size of partitions."""
        return min(map(self.needed, self.sizes(given)))

    def split(self, free: int, given: int | None, in_flight: int) -> tuple[int, int]:
        """Return the pages of a partition, and how many partitions are read together; at least `least` are free."""
        fitting = [size for size in self.sizes(given) if self.needed(size) <= free]
        small = (size for size in fitting if WaitBuffer.fixed_bytes(self.places(size)) <= free // 32)
        pages = next(small, min(fitting, key=self.needed))
        spare = min(free - self.needed(pages), free // 8)
        return pages, 1 + min(in_flight - 1, spare // (pages * self.frame_bytes))

    def capacity(self, free: int, pages: int) -> int:
        """Return how many tuples can wait in ``free`` bytes, after all other parts."""
        return (free - WaitBuffer.fixed_bytes(self.places(pages))) // self.tuple_bytes


class PartitionedJoin(HoldingJoin[WaitBuffer]):
    """Keeps waiting tuples in a list per partition of R, and reads the partition with the most tuples first.

    The index gives the partition that a tuple needs, and the tuple waits in its list. A partition is read when
    ``partition_tuples`` tuples wait for it; or, if the wait buffer is full, the partition with the most tuples is read.
    All tuples that wait for it are joined. So each read serves as many tuples as possible, but a tuple with a rare key
    may wait forever: `longest_wait` is the longest wait so far.

    Parameters
    ----------
    partition_tuples
        Waiting tuples for which a partition is read. A lower value answers sooner; with a higher one each read serves
        more tuples.
    partition_pages
        Pages of a partition. A higher value gives fewer places and longer reads. By default the smallest value for
        which the places need a small part of the memory.
    few_arrivals
        If fewer tuples than this are in the stream buffer when an iteration begins, they are looked up immediately
        through the index, as INLJ does. 0 switches this off.
    in_flight
        Partitions read together. 1 is the published algorithm. A higher value does not change the number of reads; the
        device only works on several at the same time.

    Notes
    -----
    Differences from the paper. A key that R does not have leaves in the next iteration. A tuple whose key has rows in
    several partitions waits for the first of them, and the iteration that serves it reads the others too. When the join
    is drained, all partitions with waiting tuples must be read. So they are read in the order of R, where neighbours
    become one read, and not the fullest first. The paper's cache of partitions is left out: a front stage before this
    join is better.

    Examples
    --------
    >>> import pyarrow as pa, tempfile, semistream
    >>> products = pa.table({"id": range(1000), "name": [f"product {i}" for i in range(1000)]})
    >>> sales = pa.record_batch({"id": [3, 5, 3, 700, 5] * 20, "amount": range(100)})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     relation = semistream.Relation.build(products, f"{folder}/products", key="id", page_size=512)
    ...     join = semistream.create("partitioned_join", relation, on="id", memory="1MB", partition_tuples=50)
    ...     taken = join.offer(sales)
    ...     now, later = (sum(batch.num_rows for batch in batches) for batches in (join.step(), join.drain()))
    >>> taken, now, later, join.longest_wait
    (100, 80, 20, 99)
    """

    id = "partitioned_join"
    title = "partition-based join: the partition with most waiting tuples"
    when = "Only if a tuple may wait forever: the wait for a rare key has no limit."
    place = 40
    calibrated = True
    bounded_wait = False

    def __init__(
        self,
        relation: Relation,
        *,
        partition_tuples: int = 256,
        partition_pages: int | None = None,
        few_arrivals: int = 16,
        in_flight: int = 256,
        **common: Any,
    ) -> None:
        check_at_least(1, partition_tuples=partition_tuples, partition_pages=partition_pages, in_flight=in_flight)
        check_at_least(0, few_arrivals=few_arrivals)
        self._partition_tuples = partition_tuples
        self._partition_pages = partition_pages
        self._few = few_arrivals
        self._in_flight = in_flight
        self._serving = False
        self._next_partition = 0
        super().__init__(relation, **common)

    # -- memory -------------------------------------------------------------------------------------------

    def least_bytes(self) -> int:
        return self._layout().least(self._partition_pages)

    def _layout(self) -> PartitionLayout:
        return PartitionLayout(self.relation.page_count, self.relation.device.frame_bytes, self._tuple_bytes())

    def _tuple_bytes(self) -> int:
        if not hasattr(self, "stream_codec"):
            return int(self.row_bytes) + WaitBuffer.bytes_beside_row
        return WaitBuffer.bytes_per_tuple(self.stream_codec, self.row_bytes)

    def _fixed_bytes(self) -> int:
        return WaitBuffer.fixed_bytes(self.table.nowhere)

    def open_parts(self) -> None:
        layout = self._layout()
        self._pages, count = layout.split(self.budget.free, self._partition_pages, self._in_flight)
        self._frames = self.relation.frames(count * self._pages)
        self.budget.reserve("disk buffer", self._frames.nbytes)
        self._lookup = PageLookup(self.relation, 1, share=False, cap=self.pairs_at_once)
        self.budget.reserve("INLJ page", self._lookup.nbytes)
        places = layout.places(self._pages)
        capacity = layout.capacity(self.budget.free, self._pages)
        self.table = WaitBuffer(self.stream_codec, capacity, places, self._partition_tuples, self.row_bytes)
        self._table_part = self.budget.reserve("wait buffer", self.table.nbytes)
        self._limit_rows()

    # -- the loop -----------------------------------------------------------------------------------------

    def absorb(self) -> None:
        """Move arrived tuples to the places of their partitions."""
        if self._serving or len(self.stream) < self._few:
            return
        for part in self.stream.take(self.table.free):
            count = self.table.insert(part.keys, self._places(part.keys), part.batch)
            self.tally.appended += count
            if count < len(part.keys):
                self.stream.put_back(Tuples(part.keys[count:], part.batch.slice(count)))
                break

    def _places(self, keys: Ints) -> Ints:
        """Return the places in which tuples of these keys wait: the first partition with rows of each key."""
        located = self.relation.locate(keys)
        places = np.full(keys.size, self.table.nowhere, np.int64)
        found = np.flatnonzero(located.counts)
        if found.size:
            places[found] = np.minimum.reduceat(located.pages, located.bounds[found]) // self._pages
            last = np.maximum.reduceat(located.pages, located.bounds[found]) // self._pages
            places[found[last >= self.table.nowhere]] = self.table.beyond
        return places

    def turn(self) -> Iterator[pa.RecordBatch]:
        if len(self.stream) < self._few and self.table.free:
            for part in self.stream.take(self._few):
                self.table.pass_by(len(part.keys))
                yield from self.looked_up(part, self._lookup)
        self.absorb()
        self._serving = True
        try:
            yield from self._leave(self.table.take(np.array([self.table.nowhere]))[0])
            yield from self._look_up_beyond()
            chosen = self._choose()
            if chosen.size:
                yield from self._serve(chosen)
        finally:
            self._serving = False
        self.absorb()

    def _look_up_beyond(self) -> Iterator[pa.RecordBatch]:
        """Look up tuples that need pages past the last partition through the index."""
        slots = self.table.take(np.array([self.table.beyond]))[0]
        for begin, end in portions(slots.size, self.table.sizes(slots), self.result_bytes):
            part = slots[begin:end]
            yield from self.looked_up(Tuples(self.table.keys_of(part), self.table.rows(part)), self._lookup)
        self.tally.evicted += slots.size
        self.table.release(slots)

    def _choose(self) -> Ints:
        """Return the partitions to read now."""
        most = len(self._frames) // self._pages
        if self.closing:
            chosen = self.table.next_in_order(self._next_partition, most)
            self._next_partition = int(chosen[-1]) + 1 if chosen.size else 0
            return chosen
        if len(self.stream) or not self.table.free:
            return self.table.fullest(most)
        if self.table.ripe_partitions:
            return self.table.fullest(most, self.table.ripe)
        return np.empty(0, np.int64)

    def _serve(self, partitions: Ints) -> Iterator[pa.RecordBatch]:
        """Read partitions and join all tuples that wait for them; read on for keys with rows in further partitions."""
        halfway, next_of = np.empty(0, np.int32), np.empty(0, np.int64)
        in_order = self.relation.page_order.size == 0  # otherwise a key's last row may be read before its others
        while partitions.size:
            pages = (partitions[:, None] * self._pages + np.arange(self._pages)).reshape(-1)
            pages = pages[pages < self.relation.page_count]  # the last partition may be short
            frames = self._frames[: pages.size]
            self.relation.read(pages, frames)
            taken, owner = self.table.take(partitions)
            here = np.isin(next_of, partitions)
            taken = np.concatenate([taken, halfway[here]])
            owner = np.concatenate([owner, np.searchsorted(partitions, next_of[here])])
            slots_left, next_left = [halfway[~here]], [next_of[~here]]
            portion = max(1, self.pairs_at_once // self._pages)
            for begin in range(0, taken.size, portion):
                slots, place = taken[begin : begin + portion], owner[begin : begin + portion]
                finished = np.zeros(slots.size, dtype=bool)
                for at, starts, flags in self._found(slots, place, frames):
                    if in_order:
                        finished[at[(flags & LAST) != 0]] = True
                    chosen = slots[at]
                    self.table.mark(chosen)
                    keys, stream = self.table.keys_of(chosen), self._held(chosen)
                    yield from self.joined(keys, stream, frames.reshape(-1), starts, flags)
                finished |= ~self.table.matched(slots)  # a key without a row in its first partition is not in R
                following = self._following(slots[~finished], partitions[place[~finished]])
                more = np.zeros(slots.size, dtype=bool)
                more[np.flatnonzero(~finished)] = following >= 0
                slots_left.append(slots[more])
                next_left.append(following[following >= 0])
                yield from self._leave(slots[~more])
            halfway, next_of = np.concatenate(slots_left), np.concatenate(next_left)
            partitions = np.unique(next_of)[: len(self._frames) // self._pages]

    def _found(self, slots: Slots, place: Ints, frames: Bytes) -> Iterator[tuple[Ints, Ints, Bytes]]:
        """Yield pairs: index into ``slots``, start and flags of R's row. All pages of a tuple's place are searched."""
        relation, keys = self.relation, self.table.keys_of(slots)
        # An observer needs the pairs of a key to be adjacent.
        order = np.arange(slots.size) if self._on_match is None else np.argsort(keys, kind="stable")
        who = np.repeat(order, self._pages)
        frame_of = (place[order][:, None] * self._pages + np.arange(self._pages)).reshape(-1)
        if frame_of.size and frame_of.max() >= len(frames):
            inside = frame_of < len(frames)
            who, frame_of = who[inside], frame_of[inside]
        wanted, at = keys[who], 0
        self.tally.probes += wanted.size
        while at < wanted.size:
            found, starts, flags, at = find_rows(
                frames, relation.layout.stride, relation.clustered, wanted, frame_of, at, self.pairs_at_once
            )
            if found.size:
                yield who[found], starts, flags

    def _following(self, slots: Slots, partition: Ints) -> Ints:
        """Return the next partition after this one with rows of each tuple's key, -1 if there is none."""
        if slots.size == 0:
            return np.empty(0, np.int64)
        located = self.relation.locate(self.table.keys_of(slots))
        later = located.pages // self._pages
        none = np.iinfo(np.int64).max
        later[later <= np.repeat(partition, located.counts)] = none
        # A key that was matched has pages, so no segment is empty.
        following = np.minimum.reduceat(later, located.bounds[:-1])
        return np.where(following == none, -1, following)

    def _leave(self, slots: Slots) -> Iterator[pa.RecordBatch]:
        """Let tuples that were taken from the table leave; ``how`` decides about those without a match."""
        yield from self.without_partner(self._held(slots[~self.table.matched(slots)]))
        self.tally.rows_done += slots.size
        self.tally.evicted += slots.size
        self.table.release(slots)

    # -- updates of R -------------------------------------------------------------------------------------

    def after_update(self, change: Change) -> None:
        """Move the waiting tuples to the places of their rows after the update."""
        slots = self.table.take_all()
        self.table.put_off(slots, self._places(self.table.keys_of(slots)))

    # -- state --------------------------------------------------------------------------------------------

    @property
    def longest_wait(self) -> int:
        """Longest wait of a tuple, in stream tuples that arrived after it before it left, or until now if it waits."""
        return self.table.longest_wait if self.bound else 0

    def check_parts(self) -> None:
        self.table.check()
