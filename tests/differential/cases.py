"""The differential fuzz: random relations and streams through all joins, against a dictionary.

A case is drawn from a seed: key columns of any types (R's and the stream's may differ), value columns of any Arrow
type, rows from nothing up to far longer than a stream buffer, batches around borders, updates in between. The right
answer comes from canonical keys and row numbers alone; that a result's other columns are those of the rows it
names is compared value by value, as text.

* `test_differential.py` runs cases for some seconds;
* ``python tests/differential/soak.py --tuples 10000000 --seed 1`` (``make soak``) as many as one likes, in child
  processes, and makes a case that fails small.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

import semistream
import semistream.joins
from differential.random_arrow import plain_values, random_array, random_type
from differential.random_keys import KeyColumnKind, random_key_kind
from semistream.core.errors import (
    BudgetTooSmallError,
    KeyTypeError,
    RelationBuildError,
    SemistreamError,
    UpdateRefusedError,
)
from semistream.relation.relation import Relation
from semistream.relation.rows.row_cells import RowLimitError

__all__ = ["Case", "Refused", "draw", "run"]

_BATCHES = (0, 1, 2, 7, 49, 50, 51, 100, 300)
_MOST_PAIRS = 600
_MOST_PAGE = 1 << 17
_MOST_IDLE_TURNS = 20_000
Key = tuple[Any, ...]


class Refused(Exception):
    """The library says that it does not do this; in a way that is for people."""


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
    size = rng.choice([1, 5, 30, 100])
    key = tuple(random_key_kind(rng, size) for _ in range(rng.choice([1, 1, 1, 2, 3])))
    longest = rng.choice([30, 30, 400, 4000])
    values = [pa.field(f"r{n}", random_type(rng)) for n in range(rng.choice([0, 1, 2, 3, 5, 20]))]
    bulk = rng.random() < 0.12
    if bulk:  # few plain columns and many tuples
        values, longest = [pa.field("r0", pa.string())], 30
    known = _key_rows(rng, key, 1500 if bulk else rng.choice([0, 1, 40, 200]), foreign=False)
    master, number = [], 0
    for part in _parts(known, rng):
        master.append(_side(rng, key, part, values, "row", number, longest, ours=True))
        number += len(part)
    longest = 30 if bulk else rng.choice([30, 30, 300, 9000, 60_000])
    others = [pa.field(f"s{n}", random_type(rng)) for n in range(rng.choice([0, 1, 2, 3, 6]))]
    others = others[:bulk] if bulk else others
    stream, position = [], 0
    few = [keys for keys in known if keys is not None][:7]
    partners = len(known) / max(1, len({*known}))
    for _ in range(rng.randint(1, 5)):
        most = (20_000 if bulk else _MOST_PAIRS) / max(1.0, partners)
        count = min(rng.choice((1000, 4999, 5000) if bulk else _BATCHES), 1 + int(most))
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
    joins = tuple(
        (name, {"how": rng.choice(["inner", "left"]), "factor": rng.choice([1.0, 1.1, 2.0, 20.0]),
                "schema": rng.random() < 0.5})
        for name in rng.sample(semistream.joins.algorithms(), algorithms)
    )  # fmt: skip
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


# -- running one ------------------------------------------------------------------------------------------


class _Truth:
    """R as a dictionary, and all rows there ever were as text."""

    def __init__(self, case: Case) -> None:
        self.rows: dict[Key, list[int]] = defaultdict(list)
        self.texts: dict[int, tuple[str, ...]] = {}
        self.names = [name for name in case.master[0].batch.schema.names if not name.startswith("k")]
        for side in case.master:
            self.add(side)

    def add(self, side: Side) -> None:
        numbers = side.batch["row"].to_pylist()
        for number, keys in zip(numbers, side.keys, strict=True):
            if keys is not None:
                self.rows[keys].append(number)
        columns = [plain_values(side.batch[name]) for name in self.names]
        self.texts |= dict(zip(numbers, zip(*columns, strict=True), strict=True))

    def update(self, side: Side, gone: tuple[Key, ...]) -> None:
        for keys in (*gone, *side.keys):
            if keys is not None:
                self.rows.pop(keys, None)
        self.add(side)


def run(case: Case, root: Path | None = None) -> None:
    """Run a case; raise if anything is wrong, or `Refused` if the library refuses it with an error of its own."""
    folder = Path(
        tempfile.mkdtemp(prefix="semistream-fuzz-", dir=root or ("/dev/shm" if Path("/dev/shm").is_dir() else None))
    )
    try:
        _build(case, folder / "r")
        texts = [_texts(side) for side in case.stream]
        for algorithm, options in case.joins:
            _join(case, folder / "r", algorithm, options, texts)
        _store(case, folder / "r")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _texts(side: Side) -> dict[int, tuple[str, ...]]:
    """Return all values of each tuple as text, by its position."""
    columns = [plain_values(side.batch[name]) for name in side.batch.schema.names]
    return dict(zip(side.batch["position"].to_pylist(), zip(*columns, strict=True), strict=True))


def _build(case: Case, path: Path) -> None:
    names = [f"k{at}" for at in range(len(case.key))]
    size = case.build["page_size"]
    while True:
        try:
            with Relation.build([side.batch for side in case.master], path, names, **{**case.build, "page_size": size}):
                return
        except RelationBuildError as error:
            if "bytes" not in str(error) or size >= _MOST_PAGE:
                raise Refused(str(error)) from error
            size *= 2  # a row wider than a page
        except SemistreamError as error:
            raise Refused(str(error)) from error


def _join(
    case: Case, path: Path, algorithm: str, options: dict[str, Any], texts: list[dict[int, tuple[str, ...]]]
) -> None:
    on = [f"k{at}" for at in range(len(case.key))]
    truth = _Truth(case)
    schema = case.stream[0].batch.schema
    kind = semistream.joins.find(algorithm)
    with Relation.open(path) as relation:
        try:
            least = kind.minimum_memory(relation, schema, on=on)
        except KeyTypeError as error:
            if all(column.ours == column.theirs for column in case.key):
                raise
            raise Refused(str(error)) from error
        given = {"schema": schema} if options["schema"] else {}
        join = kind(relation, on=on, how=options["how"], memory=int(least * options["factor"]) + 1, **given)
        for at, side in enumerate(case.stream):
            found: list[pa.RecordBatch] = []
            idle, taken = 0, 0
            while taken < side.batch.num_rows:
                try:
                    more = join.offer(side.batch.slice(taken))
                except RowLimitError as error:
                    raise Refused(str(error)) from error  # a row longer than all of the memory
                taken += more
                idle = 0 if more else idle + 1
                assert idle < _MOST_IDLE_TURNS, f"{algorithm} takes nothing"
                if taken < side.batch.num_rows:
                    found.extend(join.step())
            found.extend(join.drain())
            join.check()
            assert join.pending == 0
            _judge(side, found, truth, texts[at], options["how"], algorithm)
            if at in case.updates:
                _apply(case, relation, truth, *case.updates[at])
        if join.bounded:
            assert join.budget.peak <= join.budget.total


def _apply(case: Case, relation: Relation, truth: _Truth, side: Side, gone: tuple[Key, ...]) -> None:
    try:
        relation.apply(side.batch, _deletes(case, gone))
    except (UpdateRefusedError, RelationBuildError, BudgetTooSmallError):
        return  # no memory for it, or rows too wide: nothing has changed then
    truth.update(side, gone)


def _deletes(case: Case, gone: tuple[Key, ...]) -> pa.Table | None:
    if not gone:
        return None
    columns = [kind.array([keys[at] for keys in gone], kind.ours) for at, kind in enumerate(case.key)]
    return pa.table(columns, names=[f"k{at}" for at in range(len(case.key))])


def _judge(
    side: Side, found: list[pa.RecordBatch], truth: _Truth, texts: dict[int, tuple[str, ...]], how: str, algorithm: str
) -> None:
    has: Counter[tuple[int, int | None]] = Counter()
    theirs = side.batch.schema.names
    for batch in found:
        positions, numbers = batch["position"].to_pylist(), batch["row"].to_pylist()
        has.update(zip(positions, numbers, strict=True))
        left = zip(*(plain_values(batch[name]) for name in theirs), strict=True)
        right = zip(*(plain_values(batch[name]) for name in truth.names), strict=True)
        for position, number, mine, other in zip(positions, numbers, left, right, strict=True):
            assert texts.get(position) == mine, f"{algorithm}: tuple {position} is {mine}, not {texts.get(position)}"
            wanted = ("None",) * len(other) if number is None else truth.texts.get(number)
            assert wanted == other, f"{algorithm}: row {number} is {other}, not {wanted}"
    first = side.batch["position"][0].as_py() if side.batch.num_rows else 0
    should: Counter[tuple[int, int | None]] = Counter()
    for at, keys in enumerate(side.keys):
        rows = truth.rows.get(keys, []) if keys is not None else []
        should.update((first + at, row) for row in rows)
        if not rows and how == "left":
            should[first + at, None] += 1
    missing, extra = should - has, has - should
    assert not missing, f"{algorithm} ({how}) lacks {missing.total()} of {should.total()} rows: {list(missing)[:5]}"
    assert not extra, f"{algorithm} ({how}) has {extra.total()} rows too many: {list(extra)[:5]}"


def _store(case: Case, path: Path) -> None:
    """Commit the updates as versions; read R whole, compacted too."""
    truth = _Truth(case)
    _compare(path, truth)
    for side, gone in case.updates.values():
        try:
            semistream.update(path, upserts=side.batch, deletes=_deletes(case, gone))
        except RelationBuildError:
            continue
        truth.update(side, gone)
        _compare(path, truth)
    if case.updates:
        semistream.compact(path)
        _compare(path, truth)


def _compare(path: Path, truth: _Truth) -> None:
    with Relation.open(path) as relation:
        table = relation.to_table()
        numbers = table["row"].to_pylist()
        wanted = sorted(row for rows in truth.rows.values() for row in rows)
        assert sorted(numbers) == wanted, f"R has {len(numbers)} rows, and {len(wanted)} are right"
        columns = zip(*(plain_values(table[name]) for name in truth.names), strict=True)
        for number, texts in zip(numbers, columns, strict=True):
            assert truth.texts[number] == texts, f"row {number} is stored as {texts}, not {truth.texts[number]}"


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
