"""One point of `semistream bench peers`: R, memory, stream and contestants."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.core.arguments import check_at_least, nearest
from semistream.core.units import check_memory, parse_bytes, parse_count
from semistream.workloads.keys.key_source import Shape
from semistream_lab.benchmarks.peers import contestant, contestants
from semistream_lab.benchmarks.peers.dataset import Dataset
from semistream_lab.workloads.masters import Layout, layout
from semistream_lab.workloads.workload import Workload, zipf

__all__ = ["PeerSpec", "chosen", "sweep"]

_FILL_BATCH = 100_000


@dataclass(frozen=True)
class PeerSpec:
    """One point of the benchmark.

    Parameters
    ----------
    rows, row_bytes
        Rows of R, and bytes of values per row, including the key.
    memory
        Memory of each contestant: bytes, or a share of R's rows.
    exponent, shape
        Skew of the stream's keys, and the place of frequent keys in R: ``random``, anywhere; ``noperm``, next to each
        other.
    batch_rows, batches, warm_up
        Stream tuples per batch, number of measured batches, and number of batches of that size before them.
    fill
        Tuples before the warm-up, which fill the caches, in batches of 100 k if that is larger. None: five times the
        number of rows that fit into the memory.
    layout
        Kind of R's rows; see `semistream_lab.workloads.masters.master`.
    absent
        Share of the stream whose keys are not in R, but between keys of R.
    only
        Ids of the contestants. Empty: all except those that must be named explicitly.
    """

    rows: int = 10_000_000
    row_bytes: int = 128
    memory: str = "5%"
    exponent: float = 1.0
    shape: Shape = "random"
    batch_rows: int = 100_000
    batches: int = 7
    warm_up: int = 2
    fill: int | None = None
    layout: Layout = "random"
    absent: float = 0.0
    only: tuple[str, ...] = ()
    seed: int = 1

    def __post_init__(self) -> None:
        for name, least in (("rows", 1), ("row_bytes", 16), ("batch_rows", 1), ("batches", 1), ("warm_up", 0)):
            check_at_least(least, **{name: getattr(self, name)})
        check_at_least(0, fill=self.fill)
        check_memory(self.memory)
        for name in self.only:
            contestant(name)
        for name in self.only:
            if contestant(name).fixed_rows and self.layout != "random":
                raise ValueError(f"{name} stores rows of one width only; use the layout random, not {self.layout}")
        self.workload(1)  # refuses invalid values

    @property
    def names(self) -> list[str]:
        """Ids of the contestants."""
        usual = [name for name in contestants() if not contestant(name).if_asked]
        return list(self.only) or [n for n in usual if self.layout == "random" or not contestant(n).fixed_rows]

    def data(self, directory: Path) -> Dataset:
        """Return R's files."""
        return Dataset(str(directory), self.rows, self.row_bytes, self.seed, self.layout, 2 if self.absent else 1)

    def memory_bytes(self, data: Dataset) -> int:
        """Return the memory in bytes."""
        return parse_bytes(self.memory, of=data.nbytes)

    def workload(self, stream_rows: int) -> Workload:
        """The stream, and an R of random bytes with the same keys as the one that is used."""
        return zipf(
            self.rows, stream_rows, self.exponent, self.shape, row_bytes=self.row_bytes, absent=self.absent,
            seed=self.seed,
        )  # fmt: skip

    def sizes(self, data: Dataset) -> list[int]:
        """Return the tuples of every batch: filling, warm-up, measured, and a last one that is checked."""
        fits = self.memory_bytes(data) // data.width
        fill = 5 * fits if self.fill is None else self.fill
        large = max(self.batch_rows, min(_FILL_BATCH, 10 * self.batch_rows))
        return [large] * -(-fill // large) + [self.batch_rows] * (self.warm_up + self.batches + 1)

    def stream(self, data: Dataset) -> Iterator[pa.RecordBatch]:
        """Yield the batches."""
        sizes = self.sizes(data)
        held: list[pa.RecordBatch] = []
        count = 0
        parts = self.workload(sum(sizes)).stream.batches()
        for size in sizes:
            while count < size:
                held.append(next(parts))
                count += held[-1].num_rows
            whole = pa.concat_batches(held)
            yield whole.slice(0, size)
            held, count = [whole.slice(size)], count - size


_SWEPT = {
    "layout": "layout",
    "absent": "absent",
    "rows": "rows",
    "memory": "memory",
    "zipf": "exponent",
    "batch": "batch_rows",
}


def sweep(spec: PeerSpec, wanted: list[str]) -> list[PeerSpec]:
    """Return all combinations of sweeps such as ``zipf=0,0.5,1`` and ``batch=10k,100k``.

    >>> [(point.exponent, point.rows) for point in sweep(PeerSpec(), ["zipf=0,1", "rows=1M"])]
    [(0.0, 1000000), (1.0, 1000000)]
    """
    axes: dict[str, list[Any]] = {}
    for text in wanted:
        name, _, values = text.partition("=")
        if name not in _SWEPT:
            hint = nearest(name, _SWEPT, f"{', '.join(_SWEPT)} can")
            raise ValueError(f"{name!r} cannot be swept; {hint}; write zipf=0,0.5,1 or batch=10k,100k")
        if not values.strip():
            raise ValueError(f"{text!r} names no values; write {name}=…,…")
        axes[_SWEPT[name]] = [_value(name, value.strip()) for value in values.split(",")]
    return [replace(spec, **dict(zip(axes, point, strict=True))) for point in itertools.product(*axes.values())]


def _value(name: str, text: str) -> Any:
    if name == "memory":
        check_memory(text)
        return text
    if name == "layout":
        return layout(text)
    if name in ("zipf", "absent"):
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"{name} must be a number, not {text!r}") from None
    return int(parse_count(text))


def chosen(only: list[str]) -> tuple[str, ...]:
    """Return the named contestants.

    A name may be a comma-separated list, or ``papers`` for the papers' joins.

    >>> "adaptivejoin" in chosen(["papers"]), chosen(["duckdb,lmdb"])
    (False, ('duckdb', 'lmdb'))
    """
    named: dict[str, None] = {}
    for name in (name.strip() for text in only for name in text.split(",")):
        joins = [one for one in contestants() if contestant(one).kind == "join" and not contestant(one).if_asked]
        ours = [one for one in joins if one != "adaptivejoin"]
        named |= dict.fromkeys(ours if name == "papers" else [name])
    for name in named:
        contestant(name)
    return tuple(named)
