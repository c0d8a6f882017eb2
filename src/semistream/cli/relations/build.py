"""``semistream build``: builds a relation from files or a database, on this machine and without Spark."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer
from rich.progress import Progress

from semistream.cli.console import out, polled, progress, step
from semistream.cli.path_arguments import Derive, RelationPath

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["build", "growing"]


def build(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Parquet, CSV or Arrow files, or directories of them; a Delta table; or a database's address, such "
            "as postgresql://user@host/database, with its password in PGPASSWORD or MYSQL_PWD.",
            show_default=False,
        ),
    ],
    path: RelationPath,
    key: Annotated[
        list[str], typer.Option("--key", "-k", help="Key column; repeat it for several.", show_default=False)
    ],
    page_size: Annotated[str, typer.Option(help="Bytes of a page.")] = "8KiB",
    fill: Annotated[float, typer.Option(help="Share of each page that is filled, 0.1 to 1.")] = 1.0,
    shards: Annotated[
        int, typer.Option(help="Number of parts, by hash of the key; each is joined by at least one Spark task.")
    ] = 1,
    scattered: Annotated[
        bool, typer.Option("--scattered", help="Keep the order of the rows, with a separate index.")
    ] = False,
    memory: Annotated[str, typer.Option(help="Memory budget for sorting.")] = "512MB",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the relation by a new version.")] = False,
    unique: Annotated[bool, typer.Option("--unique", help="Refuse a key that has several rows.")] = False,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", help="NAME=TYPE of a CSV column, instead of a guess; repeatable.", show_default=False),
    ] = None,
    nulls: Annotated[
        list[str] | None,
        typer.Option(
            "--null", help="Text that means NULL in CSV files, like an empty field; repeatable.", show_default=False
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", help="Table in the database: NAME or SCHEMA.NAME.", show_default=False)
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", "-c", help="Column to keep; repeatable. All by default.", show_default=False),
    ] = None,
    indexes: Annotated[
        list[str] | None,
        typer.Option(
            "--index", help="Column of a secondary index, or several with commas; repeatable.", show_default=False
        ),
    ] = None,
    derive: Derive = None,
    valid_from: Annotated[
        str | None,
        typer.Option(
            "--valid-from",
            help="Column with the time from which a row is valid: keep a history, a row for each version of a key. "
            "By default __START_AT, if the rows have it and __END_AT.",
            show_default=False,
        ),
    ] = None,
    valid_to: Annotated[
        str | None,
        typer.Option(
            "--valid-to",
            help="Column with the time before which a row is valid; NULL until the key's next row. By default the next "
            "row ends a row.",
            show_default=False,
        ),
    ] = None,
    encoding: Annotated[
        str, typer.Option(help="auto packs columns where that saves bytes; plain stores values as they are.")
    ] = "auto",
) -> None:
    """Build a relation from files, a Delta table, or a table in a database.

    Rows are sorted by key within --memory. The relation is committed atomically at the end.
    """
    from semistream.cli.relations.derived import parse_derived, with_derived
    from semistream.cli.relations.inspect import summary
    from semistream.cli.relations.master import find_master
    from semistream.cli.relations.table_files import parse_types
    from semistream.relation.relation import Relation

    derived = parse_derived(derive)
    wanted = columns or ()
    # an expression may use columns that are not kept
    master = find_master(sources, parse_types(types), table, () if derived else wanted, nulls=nulls or ())
    began = time.perf_counter()
    with progress() as bars:
        reading = bars.add_task("Reading", total=master.nbytes, unit="bytes", note="")
        seen = _Seen()

        def read(position: int, batch: pa.RecordBatch) -> None:
            seen.add(batch)
            bars.update(reading, completed=position, note=f"{seen.rows:,} rows")

        rows = master.reader(read)
        master.check_keys(rows.schema, [name for name in key if name not in derived])
        if derived:
            rows = with_derived(rows, derived, wanted)
        with growing(bars, path, lambda: seen.bytes + 9 * seen.rows, "Sorting and writing"):
            relation = Relation.build(
                rows, path, key if len(key) > 1 else key[0], page_size=page_size, fill=fill,
                clustered=not scattered, shards=shards, memory=memory, overwrite=overwrite,
                unique=unique, indexes=[name.split(",") for name in indexes or ()],
                valid_from=valid_from, valid_to=valid_to, encoding=cast('Literal["auto", "plain"]', encoding),
            )  # fmt: skip
        done = seen.bytes if master.nbytes is None else master.nbytes
        bars.update(reading, total=done, completed=done)
    with relation:
        seconds = time.perf_counter() - began
        out.print(summary(relation))
        out.print(f"[green]Built[/green] in {seconds:.1f} s, {relation.row_count / seconds:,.0f} rows/s.")


class _Seen:
    """Rows and bytes read so far, to estimate how many bytes will be written."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self.bytes += int(batch.nbytes)


@contextlib.contextmanager
def growing(bars: Progress, path: os.PathLike[str], expected: Callable[[], float], description: str) -> Iterator[None]:
    """Show the growth of the page files under ``path``. Their writer reports no progress, so their size is polled.

    ``expected`` estimates their final size. The bar is full at the end, whatever the size.
    """
    if not isinstance(path, Path):  # an object store: files are written elsewhere and uploaded
        with step(bars, description, unit="bytes"):
            yield
        return
    old = set(path.glob("shard-*.pages")) if path.is_dir() else set()

    def look() -> None:
        with contextlib.suppress(OSError):
            written = sum(file.stat().st_size for file in set(path.glob("shard-*.pages")) - old)
            bars.update(task, completed=written, total=max(expected(), written + 1))

    with step(bars, description, unit="bytes") as task, polled(look):
        yield
