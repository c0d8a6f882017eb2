"""``semistream init``: writes a pipeline file from a sample of the stream and from the relations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from semistream.cli.console import out
from semistream.cli.path_arguments import read_path
from semistream.core.errors import SemistreamError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from semistream.relation.keys.key_casts import KeyCast
    from semistream.relation.keys.key_columns import KeyColumn
    from semistream.relation.storage.manifest import Manifest

__all__ = ["init"]

_FORMATS = {
    ".parquet": "parquet", ".csv": "csv", ".csv.gz": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json",
    ".ndjson": "json",
}  # fmt: skip


class ScaffoldError(SemistreamError, ValueError):
    """A pipeline file cannot be made from the given arguments."""


def init(
    stream: Annotated[
        Path, typer.Argument(help="Files of the stream, or their directory: Parquet, CSV or JSON.", show_default=False)
    ],
    relations: Annotated[
        list[Path], typer.Argument(help="Relations to join it with.", show_default=False, parser=read_path)
    ],
    on: Annotated[
        list[str] | None,
        typer.Option(
            help="The stream's key column for each relation, in order of the relations; separate the columns of a "
            "composite key by commas. By default columns with the same or a similar name as the relation's key.",
            show_default=False,
        ),
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", help="NAME=TYPE of a CSV column, instead of a guess.", show_default=False),
    ] = None,
    path: Annotated[Path, typer.Option("--out", help="The file to write.")] = Path("pipeline.toml"),
) -> None:
    """Write a pipeline file to start from: the stream's schema, a join with each relation, a Parquet sink."""
    from semistream.cli.relations.table_files import parse_types
    from semistream.relation.keys.key_casts import column_sql
    from semistream.spark.relations.types import arrow_schema

    if path.exists():
        raise ScaffoldError(f"{path} exists already; give another path with --out, or remove it")
    if on and len(on) != len(relations):
        raise ScaffoldError(
            f"there are {len(relations)} relations and {len(on)} --on; give one --on per relation, or none"
        )
    sample, format_ = _sample_of(stream)
    told = parse_types(types)
    guessed = _schema_of(sample, format_, told)
    keys = [_asked_for(*pair) for pair in zip(relations, on, strict=True)] if on else [
        _key_of(relation, guessed) for relation in relations
    ]  # fmt: skip
    for key in (name for names in keys for name in names):
        if key not in guessed.names:
            raise ScaffoldError(f"the stream has no column {key!r}; it has {', '.join(guessed.names)}")
    joins = list(zip(relations, keys, strict=True))
    schema = _with_keys(sample, told, joins, guessed) if format_ == "csv" else guessed
    seen = _as_spark_has(schema)
    steps = _steps(joins, arrow_schema(seen))
    columns = ", ".join(f"{column_sql(part.name)} {part.dataType.simpleString()}" for part in seen)
    path.write_text(_text(stream, sample, format_, columns, steps), encoding="utf-8")
    count = "a join" if len(relations) == 1 else f"{len(relations)} joins"
    undecided = [part for step in steps for part in step.parts if part.question]
    for part in undecided:
        out.print(
            f"[yellow]To decide[/yellow]: {escape(part.question)}; {escape(str(path))} has a line for it",
            soft_wrap=True,
        )
    then = "Decide that and review the file, then:" if undecided else "Review it, then:"
    out.print(f"[green]Wrote[/green] {escape(str(path))}: {count}. {then}", soft_wrap=True)
    out.print(f"  semistream run {path} --check\n  semistream run {path} --dashboard", soft_wrap=True, markup=False)


def _sample_of(stream: Path) -> tuple[Path, str]:
    """Return the first file of a stream, and its format."""
    if not stream.exists():
        raise ScaffoldError(
            f"there is nothing at {stream}; give a file of the stream, or the directory in which its files arrive"
        )
    inside = sorted(one for one in stream.rglob("*") if _is_seen(one, stream)) if stream.is_dir() else [stream]
    for one in inside:
        for ending, format_ in _FORMATS.items():
            if one.name.lower().endswith(ending):
                return one, format_
    raise ScaffoldError(f"{stream} has no file that ends in {', '.join(_FORMATS)}; put one there as a sample")


def _is_seen(file: Path, folder: Path) -> bool:
    """Return whether Spark would read a file; it skips hidden files."""
    return file.is_file() and not any(part.startswith(("_", ".")) for part in file.relative_to(folder).parts)


def _schema_of(sample: Path, format_: str, types: Mapping[str, pa.DataType]) -> pa.Schema:
    """Return the columns of a file. The types of CSV columns are guessed, except those in ``types``."""
    if format_ == "json":
        import pyarrow as pa
        import pyarrow.json

        if types:
            raise ScaffoldError(f"--type is for columns of CSV files, but {sample} has its own types; leave it out")
        try:
            return pyarrow.json.read_json(sample).schema
        except pa.ArrowInvalid as error:
            raise ScaffoldError(f"cannot read {sample} as one JSON object per line: {error}") from None
    from semistream.cli.relations.table_files import InputFiles

    return InputFiles.find([sample], types).reader().schema


def _with_keys(
    sample: Path, told: Mapping[str, pa.DataType], joins: Sequence[tuple[Path, tuple[str, ...]]], guessed: pa.Schema
) -> pa.Schema:
    """Return the columns of a CSV file, with key columns of the relations' types if the texts can be read so.

    Texts such as 007 stay text if the relation's key is text. If two relations differ, the column is text.
    """
    import pyarrow as pa

    from semistream.cli.relations.table_files import InputError

    types: dict[str, pa.DataType] = {}
    for relation, names in joins:
        for name, column in zip(names, _key_columns(relation), strict=True):
            types[name] = column.type if types.get(name, column.type) == column.type else pa.string()
    try:
        return _schema_of(sample, "csv", {**types, **told})
    except InputError:  # not all values can be read as these types
        texts = {key: kind for key, kind in types.items() if pa.types.is_string(kind)}
        return _schema_of(sample, "csv", {**texts, **told}) if texts else guessed


def _key_columns(relation: Path) -> list[KeyColumn]:
    from semistream.relation.keys.key_columns import plain_type
    from semistream.relation.keys.key_kinds import key_column

    manifest = _manifest(relation)
    columns = [key_column(plain_type(manifest.schema.field(name).type)) for name in manifest.key]
    return [column for column in columns if column is not None]  # never None: the relation was built with this key


def _manifest(relation: Path) -> Manifest:
    from semistream.relation.storage import manifest as manifests

    return manifests.load(relation)


@dataclass(frozen=True)
class _KeyPart:
    """A column of a join's key: the stream's column, or one derived from it if the types differ."""

    on: str
    cast: KeyCast | None = None
    derived: str = ""
    question: str = ""
    """The question for the user, if a cast would turn values that are not keys into keys."""


@dataclass(frozen=True)
class _Step:
    """A join to be written to the file."""

    relation: Path
    parts: tuple[_KeyPart, ...]


def _steps(joins: Sequence[tuple[Path, tuple[str, ...]]], schema: pa.Schema) -> list[_Step]:
    """Return the joins; ``schema`` is the stream's schema in Spark."""
    manifests = {relation: _manifest(relation) for relation, _ in joins}
    taken = {name.lower() for name in schema.names}.union(
        *({name.lower() for name in manifest.schema.names} for manifest in manifests.values())
    )
    found = []
    for relation, names in joins:
        parts = [
            _key_part(name, schema.field(name).type, relation, key, column, taken)
            for name, key, column in zip(names, manifests[relation].key, _key_columns(relation), strict=True)
        ]
        found.append(_Step(relation, tuple(parts)))
    return found


def _key_part(name: str, kind: pa.DataType, relation: Path, key: str, column: KeyColumn, taken: set[str]) -> _KeyPart:
    """Return how to compare the stream's column ``name`` of type ``kind`` with ``key`` of a relation."""
    from semistream.relation.keys.key_casts import derived_name, key_cast

    if column.accepts(kind):
        return _KeyPart(name)
    cast = key_cast(name, kind, column)
    derived = derived_name(name, column.sql_type)
    while derived.lower() in taken:
        derived += "_"
    question = (
        f"{name} is {kind} in the stream, and the key {key} of {relation.name} is {column.type}: not every value can "
        "be cast without loss, so no cast is written"
    )
    return _KeyPart(derived if cast.keeps else name, cast, derived, "" if cast.keeps else question)


def _asked_for(relation: Path, on: str) -> tuple[str, ...]:
    """Return the columns that ``--on`` names: one for each column of a relation's key."""
    key = _manifest(relation).key
    names = (on,) if len(key) == 1 else tuple(name.strip() for name in on.split(","))
    if len(names) != len(key):
        raise ScaffoldError(
            f"the key of {relation} has {len(key)} columns, {', '.join(key)}, but --on {on} names {len(names)}; name "
            "one column of the stream for each, separated by commas"
        )
    return names


def _key_of(relation: Path, schema: pa.Schema) -> tuple[str, ...]:
    """Return the stream's columns that have the name of a relation's key, or of the relation and its key."""
    key = _manifest(relation).key
    name = relation.name.lower()
    one = name.removesuffix("s")
    ours = {column.lower(): column for column in reversed(schema.names)}
    found = []
    for part in key:
        wished = [part, f"{name}_{part}", f"{one}_{part}"]
        if len(key) == 1:
            wished += [one, name, f"{part}_id", f"{one}_id", f"{one}id"]
        match = next((ours[wish.lower()] for wish in wished if wish.lower() in ours), None)
        if match is None:
            raise ScaffoldError(
                f"which column of the stream is the key {part!r} of {relation}? Name it with --on"
                f"{'' if len(key) == 1 else ', for all of ' + ', '.join(key)}; the stream has {', '.join(schema.names)}"
            )
        found.append(match)
    return tuple(found)


def _text(stream: Path, sample: Path, format_: str, columns: str, steps: Sequence[_Step]) -> str:
    folder = stream if stream.is_dir() else stream.parent
    lines = [
        "# Made by semistream init. Every key is described in docs/pipeline.md.",
        f"name = {json.dumps(folder.absolute().name)}",
        'checkpoint = "out/checkpoint"',
        'trigger = "available now"          # or an interval, such as "10 seconds", to run until stopped',
        "",
        "[source]",
        f"format = {json.dumps(format_)}",
        f"path = {json.dumps(str(folder.absolute()))}",
        f"schema = {json.dumps(columns, ensure_ascii=False)}",
        "files_per_batch = 16",
    ]
    if format_ == "csv":
        sep = ', sep = "\\t"' if ".tsv" in sample.suffixes else ""
        lines.append(f"options = {{ header = true{sep} }}")
        lines.append('on_malformed = "fail"              # or dead_letter, drop, null: rows that do not fit the schema')
    lines += _derived(steps)
    for step in steps:
        lines += [
            "",
            "[[join]]",
            f"relation = {json.dumps(str(step.relation.absolute()))}",
            _on(step),
            'memory = "64MB"                    # semistream tune predicts the effect of more or less',
            'on_missing = "null"                # or drop, dead_letter, park',
        ]
    return "\n".join([*lines, "", "[sink]", 'format = "parquet"', 'path = "out/facts"', ""])


def _on(step: _Step) -> str:
    names = [part.on for part in step.parts]
    open_ones = ", ".join(part.derived for part in step.parts if part.question)
    written = json.dumps(names if len(names) > 1 else names[0], ensure_ascii=False)
    return f"on = {written}" + (f"    # to decide: see {open_ones} above" if open_ones else "")


def _derived(steps: Sequence[_Step]) -> list[str]:
    """Return the lines of derived columns: keys cast to the types of the relations."""
    casts = {part.derived: part for step in steps for part in step.parts if part.cast is not None}
    if not casts:
        return []
    lines = ["", "[source.derive]                       # keys cast to the relations' types"]
    for name, part in casts.items():
        assert part.cast is not None
        line = f"{json.dumps(name, ensure_ascii=False)} = {json.dumps(part.cast.sql, ensure_ascii=False)}"
        if part.question:
            lines.append(f"# To decide: {part.question}.")
            lines.append(
                f"# If other values may be truncated or unmatched: use this line, and on = {json.dumps(name)}."
            )
            line = f"# {line}"
        lines.append(line)
    return lines


def _as_spark_has(schema: pa.Schema) -> StructType:
    import pyarrow as pa
    from pyspark.sql.types import StructField, StructType

    from semistream.spark.relations.types import spark_type

    def kind(part: pa.Field) -> pa.DataType:  # a column that is empty in the sample is text
        return pa.string() if pa.types.is_null(part.type) else part.type

    return StructType([StructField(part.name, spark_type(part.name, kind(part))) for part in schema])
