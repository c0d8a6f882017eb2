"""The interface of a contestant: it joins batches with R within a given memory."""

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
"""``join``: one of ours. ``peer``: an alternative. ``ideal``: all of R in memory. ``limit``: an upper bound for all."""


SPARE = 64 << 20
"""Bytes beyond the memory for what no budget counts: allocators, threads, code that a rare case compiles late."""
STREAM_BYTES = 24
"""Maximum bytes of a stream tuple."""


@dataclass(frozen=True)
class Task:
    """The data to join, and the memory to join it in.

    Parameters
    ----------
    data
        R in all storage formats.
    memory
        Bytes for everything that is kept between batches, and for work.
    batch_rows
        Number of tuples of the largest batch.
    exponent, shape
        What a contestant may know about the stream.
    """

    data: Dataset
    memory: int
    batch_rows: int
    exponent: float
    shape: Literal["noperm", "random"]

    @property
    def working_bytes(self) -> int:
        """Bytes of two batches with their results, which do not count towards the memory of any contestant."""
        return 2 * self.batch_rows * (self.data.width + STREAM_BYTES)

    @property
    def allowed_bytes(self) -> int:
        """Bytes that a process may grow by: the memory, the working bytes and `SPARE`."""
        return self.memory + self.working_bytes + SPARE


class Contestant(ABC):
    """Computes the inner join of stream batches with R on one integer column.

    The results have all columns of the batch and of R, with the key once, in any order and any number of pieces.
    """

    id: ClassVar[str]
    title: ClassVar[str]
    kind: ClassVar[Kind] = "peer"
    needs: ClassVar[tuple[str, ...]] = ()
    """Import names of the packages it needs beyond semistream's required dependencies."""
    extra: ClassVar[str] = "semistream-lab[peers]"
    """The extra that installs them."""
    if_asked: ClassVar[bool] = False
    """Takes part only if it is named explicitly."""
    fixed_rows: ClassVar[bool] = False
    """Stores rows as bytes of one width, so it takes part only with the layout ``random``."""
    bounded: ClassVar[bool] = True
    """Stays within the memory, which is enforced."""

    def __init__(self, task: Task) -> None:
        self.task = task

    @classmethod
    def missing(cls) -> str | None:
        """Return which packages must be installed first, or None."""
        for package in cls.needs:
            if importlib.util.find_spec(package) is None:
                return f"{package} is not installed; run: pip install '{cls.extra}'"
        return None

    @classmethod
    @abstractmethod
    def prepare(cls, data: Dataset) -> None:
        """Store R in the contestant's own format, unless it exists."""

    @abstractmethod
    def join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the joined rows of a batch; at the end, no tuple of it is waiting."""

    def timed(self, batch: pa.RecordBatch, take: Callable[[pa.RecordBatch], object]) -> float:
        """Join a batch, pass each piece of the result to ``take``, and return the seconds."""
        begin = time.perf_counter()
        for piece in self.join(batch):
            take(piece)
        return time.perf_counter() - begin

    def files(self) -> list[Path]:
        """Return the files that are read through the page cache, from which they are dropped between batches."""
        return []

    def drop_pages(self) -> None:
        """Unmap the file pages that this process has mapped."""

    def counts(self) -> dict[str, Any]:
        """Return further counts since the start, such as pages read and hits."""
        return {}

    def close(self) -> None:
        """Close the contestant."""
