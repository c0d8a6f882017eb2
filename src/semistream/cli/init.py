"""``semistream init``: a pipeline file, from a look at the stream and at the relations."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semistream.cli.console import out
from semistream.cli.path_arguments import read_path
from semistream.core.errors import SemistreamError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["init"]

_FORMATS = {
    ".parquet": "parquet", ".csv": "csv", ".csv.gz": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json",
    ".ndjson": "json",
}  # fmt: skip


class ScaffoldError(SemistreamError, ValueError):
    """What a pipeline file cannot be made from."""


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
            help="The stream's key column for each relation, in their order. By default the one that is named as the "
            "relation's key, or nearly.",
            show_default=False,
        ),
    ] = None,
    path: Annotated[Path, typer.Option("--out", help="The file to write.")] = Path("pipeline.toml"),
) -> None:
    """Write a pipeline file to start from: the stream's schema, a join for each relation, a Parquet sink."""
    if path.exists():
        raise ScaffoldError(f"{path} is there already; give another with --out, or remove it")
    if on and len(on) != len(relations):
        raise ScaffoldError(f"there are {len(relations)} relations and {len(on)} --on; give one for each, or none")
    sample, format_ = _sample_of(stream)
    keys = on or _keys_of(relations, _schema_of(sample, format_, {}))
    # texts such as 007 are keys as R has them, whatever they look like
    schema = _schema_of(sample, format_, {key: _key_type(one) for one, key in zip(relations, keys, strict=True)})
    for key in keys:
        if key not in schema.names:
            raise ScaffoldError(f"the stream has no column {key!r}; it has {', '.join(schema.names)}")
    joins = list(zip(relations, keys, strict=True))
    path.write_text(_text(stream, sample, format_, schema, joins, _casts(joins, schema)), encoding="utf-8")
    count = "a join" if len(relations) == 1 else f"{len(relations)} joins"
    out.print(f"[green]Wrote[/green] {path}: {count}. Look it through, then:", soft_wrap=True)
    out.print(f"  semistream run {path} --check\n  semistream run {path} --dashboard", soft_wrap=True)


def _sample_of(stream: Path) -> tuple[Path, str]:
    """Return the first file of a stream, and its format."""
    if not stream.exists():
        raise ScaffoldError(f"there is nothing at {stream}; give a file of the stream, or the directory they come into")
    inside = sorted(one for one in stream.rglob("*") if _is_seen(one, stream)) if stream.is_dir() else [stream]
    for one in inside:
        for ending, format_ in _FORMATS.items():
            if one.name.lower().endswith(ending):
                return one, format_
    raise ScaffoldError(f"{stream} has no file that ends in {', '.join(_FORMATS)}; put one there as a sample")


def _is_seen(file: Path, folder: Path) -> bool:
    """Return whether Spark would read a file: it passes over hidden ones."""
    return file.is_file() and not any(part.startswith(("_", ".")) for part in file.relative_to(folder).parts)


def _schema_of(sample: Path, format_: str, keys: Mapping[str, pa.DataType]) -> pa.Schema:
    """Return the columns of a file; of CSV by a guess, but for ``keys``, whose types are known."""
    if format_ == "json":
        import pyarrow as pa
        import pyarrow.json

        try:
            return pyarrow.json.read_json(sample).schema
        except pa.ArrowInvalid as error:
            raise ScaffoldError(f"cannot read {sample} as a JSON object a line: {error}") from None
    from semistream.cli.relations.table_files import InputFiles

    return InputFiles.find([sample], known=keys if format_ == "csv" else {}).reader().schema


def _keys_of(relations: Sequence[Path], schema: pa.Schema) -> list[str]:
    return [_key_of(relation, schema) for relation in relations]


def _key_type(relation: Path) -> pa.DataType:
    from semistream.relation.storage import manifest as manifests

    manifest = manifests.load(relation)
    return manifest.schema.field(manifest.key[0]).type


def _casts(joins: Sequence[tuple[Path, str]], schema: pa.Schema) -> dict[str, str]:
    """Return the types that keys of the stream have to be cast to, where R's are others."""
    from semistream.core.errors import KeyTypeError
    from semistream.relation.keys.key_codec import KeyCodec
    from semistream.relation.storage import manifest as manifests

    found: dict[str, str] = {}
    for relation, key in joins:
        manifest = manifests.load(relation)
        try:
            KeyCodec.for_schema(manifest.schema, manifest.key).check_stream(schema, key)
        except KeyTypeError:
            found[key] = _type(manifest.schema.field(manifest.key[0]))
    return found


def _key_of(relation: Path, schema: pa.Schema) -> str:
    """Return the stream's column that is named as a relation's key, or after the relation and its key."""
    from semistream.relation.storage import manifest as manifests

    key = manifests.load(relation).key
    if len(key) > 1:
        raise ScaffoldError(f"the key of {relation} is {', '.join(key)}; write that join yourself, with on = [...]")
    name = relation.name.lower()
    wished = [key[0], f"{name}_{key[0]}", f"{name.removesuffix('s')}_{key[0]}", name.removesuffix("s"), name]
    for wish in wished:
        for column in schema.names:
            if column.lower() == wish.lower():
                return str(column)
    raise ScaffoldError(
        f"which column of the stream is the key {key[0]!r} of {relation}? Say so with --on: it has "
        f"{', '.join(schema.names)}"
    )


def _text(
    stream: Path, sample: Path, format_: str, schema: pa.Schema, joins: list[tuple[Path, str]], casts: Mapping[str, str]
) -> str:
    columns = ", ".join(f"{_name(part.name)} {_type(part)}" for part in schema)
    folder = stream if stream.is_dir() else stream.parent
    lines = [
        "# Made by semistream init. Every key is described in docs/pipeline.md.",
        f"name = {json.dumps(folder.absolute().name)}",
        'checkpoint = "out/checkpoint"',
        'trigger = "available now"          # or an interval, such as "10 seconds", to go on for ever',
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
    if casts:
        lines += ["", "[source.derive]                       # keys as the relations have them"]
        lines += [f"{json.dumps(key)} = {json.dumps(f'cast({_name(key)} as {kind})')}" for key, kind in casts.items()]
    for relation, key in joins:
        lines += [
            "",
            "[[join]]",
            f"relation = {json.dumps(str(relation.absolute()))}",
            f"on = {json.dumps(key)}",
            'memory = "64MB"                    # semistream tune says what more or less would bring',
            'on_missing = "null"                # or drop, dead_letter, park',
        ]
    return "\n".join([*lines, "", "[sink]", 'format = "parquet"', 'path = "out/facts"', ""])


def _name(name: str) -> str:
    """Return a column as a schema of Spark's has it."""
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else f"`{name.replace('`', '``')}`"


def _type(part: pa.Field) -> str:
    import pyarrow as pa

    from semistream.spark.relations.types import spark_type

    kind = pa.string() if pa.types.is_null(part.type) else part.type  # a column that is empty so far
    return spark_type(part.name, kind).simpleString()
