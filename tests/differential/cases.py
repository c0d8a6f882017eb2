"""The differential fuzz: random relations and streams through all joins, against a dictionary.

A case is drawn from a seed: key columns of any types (R's and the stream's may differ), value columns of any Arrow
type, rows from nothing up to far longer than a stream buffer, batches around borders, updates in between; or few plain
columns, and tens of thousands of tuples. `judging.py` knows what is right, `running.py` runs a case.

* `test_differential.py` runs cases for some seconds;
* ``python tests/differential/soak.py --tuples 10000000 --seed 1`` (``make soak``) as many as one likes, in child
  processes, and makes a case that fails small.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pyarrow as pa

import semistream.joins
from differential.judging import Key
from differential.random_arrow import random_array, random_type
from differential.random_keys import KeyColumnKind, random_key_kind

__all__ = ["Case", "Side", "draw", "smaller"]

_BATCHES = (0, 1, 2, 7, 49, 50, 51, 100, 300)
_MOST_PAIRS = 600
_BULK = 0.2
_BULK_BATCHES = (1000, 2500, 4999, 10_000)
_MOST_BULK_PAIRS = 30_000


@dataclass(frozen=True)
class Side:
    """Rows of R or of the stream: canonical keys beside what the library is given."""

    keys: tuple[Key | None, ...]
    batch: pa.RecordBatch


@dataclass(frozen=True)
class Case:
    """All that a run needs, as data, so that parts can be left out."""

    seed: int
    key: tuple[KeyColumnKind, ...]
    master: tuple[Side, ...]
    stream: tuple[Side, ...]
    updates: dict[int, tuple[Side, tuple[Key, ...]]]
    """After how many batches: rows to upsert, keys to delete."""
    build: dict[str, Any]
    joins: tuple[tuple[str, dict[str, Any]], ...]
    columns: tuple[str, ...] = field(default=())

    @property
    def tuples(self) -> int:
        return sum(side.batch.num_rows for side in self.stream) * len(self.joins)

    def __str__(self) -> str:
        def schema(sides: tuple[Side, ...]) -> str:
            return "; ".join(f"{field.name}: {field.type}" for field in sides[0].batch.schema) if sides else "-"

        return (
            f"case {self.seed}: R {schema(self.master)}\n  rows {[side.batch.num_rows for side in self.master]} "
            f"{self.build}\n  stream {schema(self.stream)}\n  rows {[side.batch.num_rows for side in self.stream]}, "
            f"updates after {[*self.updates]}\n  joins {self.joins}"
        )


def draw(seed: int, algorithms: int = 3) -> Case:
    """Draw a case."""
    rng = Random(seed)
    bulk = rng.random() < _BULK
    size = rng.choice([100, 1000, 3000] if bulk else [1, 5, 30, 100])
    key = tuple(random_key_kind(rng, size) for _ in range(rng.choice([1, 1, 1, 2, 3])))
    longest = 30 if bulk else rng.choice([30, 30, 400, 4000])
    values = [pa.field(f"r{n}", random_type(rng, 1 if bulk else 3)) for n in range(rng.choice([0, 1, 2, 3, 5, 20]))]
    values = values[:3] if bulk else values
    known = _key_rows(rng, key, rng.choice([20, 1000, 3000] if bulk else [0, 1, 40, 200]), foreign=False)
    master, number = [], 0
    for part in _parts(known, rng):
        master.append(_side(rng, key, part, values, "row", number, longest, ours=True))
        number += len(part)
    longest = 30 if bulk else rng.choice([30, 30, 300, 9000, 60_000])
    others = [pa.field(f"s{n}", random_type(rng, 1 if bulk else 3)) for n in range(rng.choice([0, 1, 2, 3, 6]))]
    others = others[:2] if bulk else others
    stream, position = [], 0
    few = [keys for keys in known if keys is not None][:7]
    partners = len(known) / max(1, len({*known}))
    for _ in range(rng.randint(1, 5)):
        most = (_MOST_BULK_PAIRS if bulk else _MOST_PAIRS) / max(1.0, partners)
        count = min(rng.choice(_BULK_BATCHES if bulk else _BATCHES), 1 + int(most))
        rows = _key_rows(rng, key, count, foreign=True, known=few if rng.random() < 0.3 else known)
        stream.append(_side(rng, key, rows, others, "position", position, longest, ours=False))
        position += len(rows)
    clustered = rng.random() < 0.85
    updates = {}
    for at in range(len(stream)):
        if clustered and rng.random() < 0.4:
            some = _key_rows(rng, key, rng.choice([0, 1, 3, 30]), foreign=False, known=known)
            gone = [keys for keys in _key_rows(rng, key, rng.choice([0, 2, 20]), foreign=False, known=known) if keys]
            updates[at] = (_side(rng, key, some, values, "row", number, 30, ours=True), tuple(gone))
            number += len(some)
    build = {
        "page_size": rng.choice([512, 1024, 4096, 8192]), "fill": rng.choice([1.0, 0.7]), "clustered": clustered,
        "shards": rng.choice([1, 1, 2, 3]),
    }  # fmt: skip
    # a join with next to no memory reads R for every few tuples
    factors = [3.0, 10.0, 40.0, 200.0] if bulk else [1.0, 1.1, 2.0, 20.0]
    joins = tuple(
        (name, {"how": rng.choice(["inner", "left"]), "factor": rng.choice(factors), "schema": rng.random() < 0.5})
        for name in rng.sample(semistream.joins.algorithms(), algorithms)
    )
    build["packed"] = rng.randrange(4) if rng.random() < 0.4 else None
    return Case(seed, key, tuple(master), tuple(stream), updates, build, joins)


def _parts(rows: list[Any], rng: Random) -> list[list[Any]]:
    """Cut rows into one to three batches."""
    cuts = sorted(rng.randint(0, len(rows)) for _ in range(rng.randint(0, 2)))
    return [rows[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


def _key_rows(
    rng: Random, key: tuple[KeyColumnKind, ...], count: int, *, foreign: bool, known: list[Key | None] | None = None
) -> list[Key | None]:
    """Draw canonical keys that R's types hold, or the stream's; None stands for a key with a NULL in it."""
    pools = [[v for v in kind.pool if not foreign or kind.fits(v, kind.theirs)] for kind in key]
    strange = [[v for v in kind.foreign if kind.fits(v, kind.theirs)] for kind in key]
    usable = [keys for keys in known or () if keys is not None and (not foreign or _fits(keys, key))]
    rows: list[Key | None] = []
    for _ in range(count):
        chance = rng.random()
        if chance < 0.05:
            rows.append(None)
        elif usable and chance < 0.75:
            rows.append(rng.choice(usable))
        elif foreign and chance < 0.85 and all(strange):
            rows.append(tuple(map(rng.choice, strange)))
        elif all(pools):
            rows.append(tuple(map(rng.choice, pools)))
        else:
            rows.append(None)
    return rows


def _fits(keys: Key, key: tuple[KeyColumnKind, ...]) -> bool:
    return all(kind.fits(value, kind.theirs) for kind, value in zip(key, keys, strict=True))


def _side(
    rng: Random, key: tuple[KeyColumnKind, ...], rows: list[Key | None], values: list[pa.Field], number: str,
    begin: int, longest: int, *, ours: bool,
) -> Side:  # fmt: skip
    count = len(rows)
    broken = [rng.randrange(len(key)) for _ in rows]
    names, arrays = [number], [pa.array(range(begin, begin + count), pa.int64())]
    for at, kind in enumerate(key):
        column = [
            (None if broken[row] == at else (kind.pool[0] if ours or kind.fits(kind.pool[0], kind.theirs) else None))
            if keys is None else keys[at]
            for row, keys in enumerate(rows)
        ]  # fmt: skip
        names.append(f"k{at}")
        arrays.append(kind.array(column, kind.ours if ours else kind.theirs))
    for field_ in values:
        names.append(field_.name)
        arrays.append(random_array(field_.type, count, rng, longest))
    fields = [pa.field(name, array.type) for name, array in zip(names, arrays, strict=True)]
    order = list(range(len(names)))
    Random(5).shuffle(order)  # the same for all batches of a side
    return Side(
        tuple(rows),
        pa.RecordBatch.from_arrays([arrays[at] for at in order], schema=pa.schema([fields[at] for at in order])),
    )


# -- failures made small ----------------------------------------------------------------------------------


def smaller(case: Case) -> list[Case]:
    """Return cases with a part of this one left out."""
    result = [replace(case, joins=(join,)) for join in case.joins if len(case.joins) > 1]
    result += [
        replace(case, updates={at: one for at, one in case.updates.items() if at != gone}) for gone in case.updates
    ]
    if len(case.stream) > 1:
        result += [replace(case, stream=case.stream[:-1])]
        result += [
            replace(case, stream=(*case.stream[:at], *case.stream[at + 1 :]), updates={})
            for at in range(len(case.stream))
        ]
    names = {name for side in (*case.master, *case.stream) for name in side.batch.schema.names}
    for name in sorted(names):
        if name[0] in "rs" and name != "row":
            result.append(
                replace(
                    case,
                    master=tuple(_without(side, name) for side in case.master),
                    stream=tuple(_without(side, name) for side in case.stream),
                    updates={at: (_without(side, name), gone) for at, (side, gone) in case.updates.items()},
                )
            )
    for part in ("master", "stream"):
        for at, side in enumerate(getattr(case, part)):
            half = side.batch.num_rows // 2
            if half:
                sides = list(getattr(case, part))
                for begin, end in ((0, half), (half, side.batch.num_rows)):
                    cut = Side(side.keys[begin:end], side.batch.slice(begin, end - begin))
                    result.append(replace(case, **{part: (*sides[:at], cut, *sides[at + 1 :])}))
    return result


def _without(side: Side, name: str) -> Side:
    if name not in side.batch.schema.names:
        return side
    return Side(side.keys, side.batch.drop_columns([name]))
