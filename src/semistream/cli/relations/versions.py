"""``semistream upsert``, ``delete``, ``compact``, ``history`` and ``vacuum``: commands for a relation's versions."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from semistream.cli.console import errors, out
from semistream.cli.path_arguments import Derive, RelationPath
from semistream.core.errors import SemistreamError
from semistream.core.paths import is_address, local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from semistream.relation.storage.manifest import Manifest

__all__ = ["compact", "delete", "history", "upsert", "vacuum"]

_Sources = Annotated[
    list[str],
    typer.Argument(help="As for [bold]build[/bold]: files, a Delta table, or a database.", show_default=False),
]
_Table = Annotated[
    str | None, typer.Option("--table", help="Table in the database: NAME or SCHEMA.NAME.", show_default=False)
]
_Types = Annotated[
    list[str] | None,
    typer.Option("--type", help="NAME=TYPE of a CSV column, instead of R's; repeatable.", show_default=False),
]
_Nulls = Annotated[
    list[str] | None,
    typer.Option(
        "--null", help="Text that means NULL in CSV files, like an empty field; repeatable.", show_default=False
    ),
]
_Spark = Annotated[
    str | None,
    typer.Option(
        "--spark",
        help="Run as a Spark job on this master, such as local[*], for updates larger than memory. Sources must be "
        "Parquet or CSV files.",
        show_default=False,
    ),
]
_At = Annotated[
    str | None,
    typer.Option(
        "--at",
        help="In a history: the time from which the change is valid, such as 2026-01-01. The current rows end then, "
        "and earlier rows stay. The sources have no columns of times.",
        show_default=False,
    ),
]


def upsert(
    sources: _Sources,
    path: RelationPath,
    table: _Table = None,
    types: _Types = None,
    nulls: _Nulls = None,
    derive: Derive = None,
    spark: _Spark = None,
    at: _At = None,
    evolve: Annotated[
        bool,
        typer.Option(
            "--evolve", help="Add columns that the relation lacks, and widen types. Otherwise they are left out."
        ),
    ] = False,
) -> None:
    """Replace the rows of keys, or add new keys, as a new version.

    A key that occurs in the sources has exactly these rows in the new version. Readers of older versions are not
    affected.
    """
    from semistream.relation.storage import manifest as manifests

    before = manifests.load(path)
    if spark is not None:
        if derive:
            raise ValueError("--spark does not support --derive; leave one of them out")
        _refuse_at(at)
        from semistream.spark.relations.update_jobs import upsert as by_job

        with _session(spark) as session:
            frame = _frame(session, sources, before, table, types, nulls)
            kept = frame if evolve else frame.drop(*(name for name in frame.columns if name not in before.schema.names))
            _announce(path, before, by_job(kept, path, evolve=evolve))
        return
    from semistream.relation.committing import commit_update
    from semistream.relation.rows.arrow_input import read_whole

    names = before.schema.names if at is None else [n for n in before.schema.names if n not in before.time_columns]
    rows = read_whole(_read(sources, before, table, types, nulls, derive, [] if evolve else names))
    _announce(path, before, commit_update(path, rows, None, at=_moment(before, at), evolve=evolve).version)


def delete(
    sources: _Sources,
    path: RelationPath,
    table: _Table = None,
    types: _Types = None,
    nulls: _Nulls = None,
    spark: _Spark = None,
    at: _At = None,
) -> None:
    """Remove the keys in the sources, with all their rows, as a new version. Only the key columns are read."""
    from semistream.relation.storage import manifest as manifests

    before = manifests.load(path)
    if spark is not None:
        _refuse_at(at)
        from semistream.spark.relations.update_jobs import delete as by_job

        with _session(spark) as session:
            _announce(path, before, by_job(_frame(session, sources, before, table, types, nulls), path))
        return
    from semistream.relation.updates import delete as commit

    keys = _read(sources, before, table, types, nulls, None, list(before.key))
    _announce(path, before, commit(path, keys, at=_moment(before, at)))


def compact(path: RelationPath, spark: _Spark = None) -> None:
    """Rewrite the relation with all updates merged, as a new version."""
    from semistream.relation.storage import manifest as manifests

    before = manifests.load(path)
    if spark is not None:
        from semistream.spark.relations.update_jobs import compact as by_job

        with _session(spark) as session:
            _announce(path, before, by_job(session, path))
        return
    from semistream.relation.updates import compact as commit

    _announce(path, before, commit(path))


def history(
    path: RelationPath,
    key: Annotated[
        list[str] | None,
        typer.Argument(help="A key, one value for each of its columns: show its rows instead.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the versions that can be opened; or all rows of a key, in the order in which they were valid."""
    if key:
        from semistream.cli.relations.key_rows import show_key

        show_key(path, key, as_json=as_json)
        return
    from semistream.relation.updates import history as versions

    found = versions(path)
    if as_json:
        print(json.dumps([dataclasses.asdict(version) for version in found]))
        return
    table = Table(title=escape(str(path)), title_justify="left")
    commits = ["commit"] if any(version.commit for version in found) else []
    for heading in ("version", "by", *commits, "rows", "pages", "changed pages", "committed"):
        table.add_column(heading, justify="left" if heading in ("by", "committed") else "right")
    for version in found:
        committed = datetime.datetime.fromtimestamp(version.committed).strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(
            str(version.number),
            version.operation or "–",
            *([version.commit or "–"] if commits else []),
            f"{version.rows:,}",
            f"{version.pages:,}",
            f"{version.changed_pages:,}",
            committed,
        )
    out.print(table)


def vacuum(
    path: RelationPath,
    keep: Annotated[
        list[int] | None, typer.Option("--keep", help="Version to keep; repeatable.", show_default=False)
    ] = None,
    older_than: Annotated[float, typer.Option(help="Keep versions that were the newest within this many hours.")] = 1.0,
    idle_days: Annotated[
        float, typer.Option(help="Release versions pinned by a streaming query that has not run for this many days.")
    ] = 30.0,
) -> None:
    """Remove versions that are neither read nor pinned, except the newest, and files left by killed writers."""
    from semistream.core.arguments import check_at_least
    from semistream.relation.storage import manifest as manifests
    from semistream.relation.versions.keeping import kept_because
    from semistream.relation.versions.vacuum import vacuum as removed_by

    check_at_least(0, older_than=older_than, idle_days=idle_days)
    there = manifests.versions(path)
    if wrong := [number for number in keep or () if number not in there]:
        listed = ", ".join(map(str, there)) or "none"
        raise ValueError(f"there is no version {wrong[0]} to keep; available: {listed}. Nothing was removed")
    removed = removed_by(path, idle_days=idle_days, keep=keep or (), older_than=older_than * 3600)
    out.print(f"[green]Removed[/green] {len(removed)} files." if removed else "Nothing to remove.")
    for number, reason in kept_because(path, keep=keep or (), older_than=older_than * 3600).items():
        out.print(f"[dim]version {number} is kept: {reason}[/dim]", soft_wrap=True)


def _read(
    sources: list[str],
    manifest: Manifest,
    table: str | None,
    types: list[str] | None,
    nulls: list[str] | None,
    derive: list[str] | None,
    columns: list[str],
) -> object:
    from semistream.cli.relations.derived import parse_derived, with_derived
    from semistream.cli.relations.master import find_master
    from semistream.cli.relations.table_files import parse_types

    known = dict(zip(manifest.schema.names, manifest.schema.types, strict=True))
    derived = parse_derived(derive)
    if not derived:
        return find_master(sources, parse_types(types), table, columns, known=known, nulls=nulls or ()).reader()
    before = {name: kind for name, kind in known.items() if name not in derived}
    found = find_master(sources, parse_types(types), table, known=before, nulls=nulls or ())
    return with_derived(found.reader(), derived, columns)


def _refuse_at(at: str | None) -> None:
    if at is not None:
        raise ValueError("--spark does not support --at; leave one of them out")


def _moment(manifest: Manifest, at: str | None) -> str | int | None:
    """Return the value of --at; a number if times of the relation are numbers."""
    if at is None or manifest.times is None or not manifest.times.is_number:
        return at
    try:
        return int(at)
    except ValueError:
        raise ValueError(
            f"--at={at!r} must be a number, as {manifest.times.valid_from!r} of {manifest.key} is"
        ) from None


@contextlib.contextmanager
def _session(master: str) -> Iterator[SparkSession]:
    from semistream.spark.sessions import session

    spark = session("semistream", master=master, settings={"spark.sql.session.timeZone": "UTC"})
    try:
        yield spark
    finally:
        spark.stop()


def _frame(
    spark: SparkSession,
    sources: list[str],
    manifest: Manifest,
    table: str | None,
    types: list[str] | None,
    nulls: list[str] | None,
) -> DataFrame:
    """Return the rows of Parquet or CSV files; columns of CSV files have R's types."""
    from semistream.cli.relations.table_files import InputError, parse_types
    from semistream.spark.pipeline.csv_tables import read_csv

    if table or any(is_address(source) for source in sources):
        raise InputError("--spark reads Parquet and CSV files; leave it out to read from a database")
    names = [str(local_path(source).absolute()) for source in sources]
    if not all(name.endswith(".csv") for name in names):
        if types or nulls:
            raise InputError(f"{'--type' if types else '--null'} is for CSV files; leave it out")
        return spark.read.parquet(*names)
    if len(nulls or ()) > 1:
        raise InputError("--spark supports one text for NULL; give --null once, or leave out --spark")
    known = dict(zip(manifest.schema.names, manifest.schema.types, strict=True))
    return read_csv(spark, names, known, parse_types(types), null=nulls[0] if nulls else None)


def _announce(path: Path, before: Manifest, version: int) -> None:
    from semistream.relation.builder import null_keys_of
    from semistream.relation.storage import manifest as manifests

    made = manifests.load(path, version)
    out.print(f"[green]Committed[/green] version {version} of {escape(str(path))}: {made.rows:,} rows.")
    with contextlib.suppress(SemistreamError, OSError):  # removed meanwhile: then another writer's rows are counted too
        before = manifests.load(path, version - 1)
    if left_out := null_keys_of(made) - null_keys_of(before):
        errors.print(f"[yellow]![/yellow] {left_out:,} rows were left out: their key is NULL.", soft_wrap=True)
    if before.unique and not made.unique:
        errors.print("[yellow]![/yellow] Some keys now have several rows; before, each key had one.", soft_wrap=True)
