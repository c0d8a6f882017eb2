"""What every contestant has: it joins a batch with R within a memory, and says what it is."""

from __future__ import annotations

import importlib.util
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa

from semistream_lab.benchmarks.peers.dataset import Dataset

__all__ = ["Contestant", "Kind", "Task"]

Kind = Literal["join", "peer", "ideal", "limit"]
"""One of ours; something else; all of R in memory; what no one can pass."""


SPARE = 64 << 20
"""Bytes beyond the memory for what no budget counts: allocators, threads, code that a rare case brings in late."""
STREAM_BYTES = 24
"""Bytes of a stream tuple, at most."""


@dataclass(frozen=True)
class Task:
    """What is to be joined with what.

    Parameters
    ----------
    data
        R, in every form there is.
    memory
        Bytes for everything that is kept from one batch to the next, and for work.
    batch_rows
        Tuples of the largest batch.
    exponent, shape
        The stream, as far as a contestant may know it.
    """

    data: Dataset
    memory: int
    batch_rows: int
    exponent: float
    shape: Literal["noperm", "random"]

    @property
    def working_bytes(self) -> int:
        """Bytes for a batch and its results, twice, which nobody's memory has to hold."""
        return 2 * self.batch_rows * (self.data.format.width + STREAM_BYTES)

    @property
    def allowed_bytes(self) -> int:
        """By how much a process may grow: the memory, a batch and its results, and what is spare."""
        return self.memory + self.working_bytes + SPARE


class Contestant(ABC):
    """Something that joins batches of a stream with R, inner, on one column of integers.

    The results have all columns of the batch and all of R, the key once, in any order and any number of pieces.
    """

    id: ClassVar[str]
    title: ClassVar[str]
    kind: ClassVar[Kind] = "peer"
    needs: ClassVar[tuple[str, ...]] = ()
    """Packages beyond those that semistream cannot do without, by the name they are imported by."""
    extra: ClassVar[str] = "semistream-lab[peers]"
    """The extra that installs them."""
    if_asked: ClassVar[bool] = False
    """Takes part only where it is named."""
    bounded: ClassVar[bool] = True
    """Keeps to the memory, and is made to."""

    def __init__(self, task: Task) -> None:
        self.task = task

    @classmethod
    def missing(cls) -> str | None:
        """Say what has to be installed first, if something has."""
        for package in cls.needs:
            if importlib.util.find_spec(package) is None:
                return f"{package} is not installed; run: pip install '{cls.extra}'"
        return None

    @classmethod
    @abstractmethod
    def prepare(cls, data: Dataset) -> None:
        """Store R in the contestant's own form, unless it is there."""

    @abstractmethod
    def join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the joined rows of a batch; at the end nothing of it is left."""

    def timed(self, batch: pa.RecordBatch, take: Callable[[pa.RecordBatch], object]) -> float:
        """Join a batch, hand over each piece of the result, and return the seconds."""
        begin = time.perf_counter()
        for piece in self.join(batch):
            take(piece)
        return time.perf_counter() - begin

    def files(self) -> list[Path]:
        """Return the files that are read through the page cache, which must not help from batch to batch."""
        return []

    def drop_pages(self) -> None:
        """Let go of pages of files that this process has mapped."""

    def counts(self) -> dict[str, Any]:
        """Return what else is known, added up since the start: pages read, hits."""
        return {}

    def close(self) -> None:
        """End it."""
