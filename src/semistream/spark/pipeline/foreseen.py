"""Checks of joins against the stream's schema in the file, before Spark starts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from semistream.core.arguments import nearest
from semistream.core.errors import (
    BudgetTooSmallError,
    KeyColumnError,
    KeyTypeError,
    SemistreamError,
    UnknownColumnsError,
)
from semistream.joins import AUTO, Join, find
from semistream.relation.keys.key_casts import derived_name, key_cast
from semistream.relation.keys.key_columns import plain_type
from semistream.relation.keys.key_kinds import key_column
from semistream.relation.relation import Relation
from semistream.relation.storage.manifest import Manifest
from semistream.spark.joining.join_plan import ALGORITHM, MEMORY, plan_join
from semistream.spark.joining.shard_budget import ShardBudget
from semistream.spark.pipeline.assembly import explained
from semistream.spark.pipeline.document import Document
from semistream.spark.pipeline.plan import JoinPlan, SourcePlan

__all__ = ["check_joins", "columns_of"]

_NAMED = inspect.Parameter.KEYWORD_ONLY

Columns = dict[str, pa.DataType | None]
"""Columns and their types; None for types that are not simple."""

_TYPES = {
    "boolean": pa.bool_(), "tinyint": pa.int8(), "byte": pa.int8(), "smallint": pa.int16(), "short": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(), "bigint": pa.int64(), "long": pa.int64(), "float": pa.float32(),
    "real": pa.float32(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
}  # fmt: skip
"""Spark's names of types. Timestamps are left to Spark, because its settings decide their type."""


def columns_of(schema: str) -> Columns | None:
    """Return the columns of a schema in SQL; None if it cannot be read here.

    >>> columns_of("id long, `a b` array<struct<x:int,y:int>>, price decimal(10, 2)")
    {'id': DataType(int64), 'a b': None, 'price': Decimal128Type(decimal128(10, 2))}
    """
    parts, depth = [""], 0
    for letter in schema:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    found = [re.match(r"\s*(?:`([^`]+)`|(\w+))[\s:]\s*(.*)", part, re.DOTALL) for part in parts]
    return {one[1] or one[2]: _type(one[3]) for one in found if one} if depth == 0 and all(found) else None


_OTHERS = (
    "timestamp", "timestamp_ntz", "timestamp_ltz", "decimal", "dec", "numeric", "char", "varchar", "time", "interval",
    "variant", "void", "array", "map", "struct",
)  # fmt: skip


def _check_words(source: SourcePlan, schema: str, document: Document) -> None:
    """Record an error for words that are similar to the name of a type, but are not one."""
    for word in re.findall(r"(?:^|,)\s*(?:`[^`]+`|\w+)\s+([A-Za-z_]+)\s*(?=,|$)", schema):
        near = nearest(word.lower(), [*_TYPES, *_OTHERS])
        if word.lower() not in (*_TYPES, *_OTHERS) and near:
            document.note((*source.place, "schema"), f"there is no type {word!r}; {near}")


def _type(text: str) -> pa.DataType | None:
    plain = re.sub(r"\s+(not\s+null|comment\s+.*)", "", text.strip().lower(), flags=re.DOTALL)
    if decimal := re.fullmatch(r"(?:decimal|dec|numeric)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", plain):
        digits = int(decimal[1])
        return pa.decimal128(digits, int(decimal[2] or 0)) if 1 <= digits <= 38 else None
    return _TYPES.get(plain)


_CAST = re.compile(r"(?:case when .+ = )?try_cast\((.+?) as (\w+(?:\([\d, ]+\))?)\)(?: then .+ end)?")
"""Casts of keys, in the form that error messages and ``semistream init`` use."""


def _has_stale_cast(source: SourcePlan, plan: JoinPlan, known: Columns, document: Document) -> bool:
    """Record an error for a key that is cast to an old type: R was rebuilt with a key of another type.

    Values that the old type cannot hold become NULL, and have no match.
    """
    manifest = plan.manifest()
    if len(plan.on) != len(manifest.key) or plan.condition != "equal":
        return False
    for name, key in zip(plan.on, manifest.key, strict=True):
        column = key_column(plain_type(manifest.schema.field(key).type))
        cast = _CAST.fullmatch(source.derive.get(name, "").strip())
        if cast is None or column is None or not name.startswith(derived_name(cast[1].strip("`"), cast[2])):
            continue
        kind = _type(cast[2])
        if kind is None or (column.accepts(kind) and not _narrower(kind, column.type)):
            continue
        from_, theirs = cast[1].strip("`"), known.get(cast[1].strip("`"))
        if theirs is not None and column.accepts(theirs):
            remedy = f"remove the cast, and join on {from_}"
        else:
            fresh = derived_name(from_, column.sql_type)
            sql = key_cast(from_, pa.string() if theirs is None else theirs, column).sql
            remedy = f'write {fresh} = "{sql}" in its place, and join on {fresh}'
        document.note(
            (*source.place, "derive", name),
            f"{name} is cast to {cast[2]}, but the key {key!r} of {plan.relation.name} is now {column.type}; {remedy}",
        )
        return True
    return False


def _narrower(kind: pa.DataType, than: pa.DataType) -> bool:
    if pa.types.is_integer(kind) and pa.types.is_integer(than):
        return bool(kind.bit_width < than.bit_width)
    return bool(pa.types.is_decimal(kind) and pa.types.is_decimal(than) and kind.precision < than.precision)


def check_joins(source: SourcePlan, joins: Sequence[JoinPlan], document: Document) -> None:
    """Record keys that do not exist or differ in type from R's, and budgets that are too small for a join."""
    known = None if source.schema is None else columns_of(source.schema)
    stale = [plan for plan in joins if _has_stale_cast(source, plan, known or {}, document)]
    if known is None or stale:
        return
    _check_words(source, source.schema or "", document)
    known |= dict.fromkeys(source.derive)
    if source.format == "kafka":
        known |= dict.fromkeys(("key", "value", "timestamp"))
    for plan in joins:
        folded = {name.lower(): kind for name, kind in known.items()}
        manifest = plan.manifest()
        for name in (*plan.on, *([plan.as_of] if plan.as_of else [])):
            if name.lower() not in folded:
                told = f"there is no column {name!r} to join {'on' if name in plan.on else 'as of'}"
                hint = nearest(name, known)
                key = "on" if name in plan.on else "as_of"
                document.note((*plan.place, key), f"{told}; there are {', '.join(known)}{f'; {hint}' if hint else ''}")
                return
        keys = {name: folded[name.lower()] for name in plan.on}
        checked = None not in keys.values() and plan.condition == "equal"  # others later, with Spark's schema
        if checked and not _key_fits(pa.schema(keys), manifest, plan, document):
            return
        if checked and plan.as_of is None:
            _check_memory(pa.schema(keys), manifest, plan, document)
        if plan.surrogate is not None:
            known = {name: None if name.lower() == plan.on[0].lower() else kind for name, kind in known.items()}
        for part in manifest.schema:
            known.setdefault(plan.prefix + part.name, part.type)
            known.setdefault(plan.prefix + part.name + plan.suffix, part.type)


def _key_fits(keys: pa.Schema, manifest: Manifest, plan: JoinPlan, document: Document) -> bool:
    try:
        manifest.codec.check_stream(keys, plan.on)
    except (KeyColumnError, KeyTypeError) as error:
        document.note((*plan.place, "on"), explained(error))
        return False
    return True


def _check_memory(keys: pa.Schema, manifest: Manifest, plan: JoinPlan, document: Document) -> None:
    """Record a budget that is too small for the keys alone, and options that the algorithm does not have.

    The size of whole rows and of parked rows depends on Spark's schema, and is checked later.
    """
    algorithm = plan.algorithm or ALGORITHM
    if algorithm == AUTO or not isinstance(plan.relation, Path):  # an object store is opened once, later
        return
    largest = max(range(len(manifest.shards)), key=lambda number: manifest.shards[number].pages)
    memory = MEMORY if plan.memory is None else plan.memory
    ours = inspect.signature(plan_join).parameters
    options = {name: value for name, value in plan.options.items() if name not in ours}
    try:
        with Relation.open(plan.relation, version=manifest.version, shards=[largest], by=plan.by) as shard:
            budget = ShardBudget.of(shard, plan.relation, manifest, memory)
            kind, settings = find(algorithm), {"on": plan.on, "columns": plan.columns, **options}
            budget.enough_for(kind, settings, {1.0: keys}).share(kind, keys, settings, 1.0)
    except BudgetTooSmallError as error:
        document.note((*plan.place, "memory"), explained(error))
    except TypeError as error:
        if wrong := re.search(r"unexpected keyword argument '(\w+)'", str(error)):
            own = _options_of(find(algorithm))
            hint = nearest(wrong[1], own, f"it has {', '.join(own)}" if own else "it has none")
            document.note((*plan.place, "options", wrong[1]), f"{algorithm} has no option {wrong[1]!r}; {hint}")
    except UnknownColumnsError as error:
        for name in error.names:
            told = f"{plan.relation}: there is no column {name!r}; there are {', '.join(error.columns)}"
            document.note((*plan.place, "columns"), told)
    except SemistreamError:
        return  # reported later, with Spark's schema


def _options_of(kind: type[Join]) -> list[str]:
    """Return the options of an algorithm and of the algorithm behind it, without the options that all joins share."""
    classes = [*kind.__mro__, *getattr(getattr(kind, "behind", None), "__mro__", ())]
    made = [vars(one)["__init__"] for one in classes if one is not Join and "__init__" in vars(one)]
    found = {part.name for one in made for part in inspect.signature(one).parameters.values() if part.kind == _NAMED}
    return sorted(found - inspect.signature(Join).parameters.keys())
