"""``semistream inspect``: describes a relation and checks its pages."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from semistream.cli.console import errors, facts, out, print_json, progress, step
from semistream.cli.path_arguments import RelationPath
from semistream.core.units import format_bytes

if TYPE_CHECKING:
    from semistream.relation.damage.verify import Fault
    from semistream.relation.relation import Relation

__all__ = ["describe", "inspect", "summary"]


def inspect(
    path: RelationPath,
    check: Annotated[bool, typer.Option("--check", help="Read every page and verify it.")] = False,
    version: Annotated[int | None, typer.Option(help="Which version; the newest by default.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Describe a relation; with --check also verify that all of it can be read.

    Exit code 1 if a page is damaged; 2 if the relation cannot be opened because a file is missing or its index is
    damaged.
    """
    from semistream.relation.relation import Relation

    with Relation.open(path, version=version) as relation:
        found = describe(relation)
        faults = _check(relation) if check else None
        if json:
            if faults is not None:
                found["notes"] = _notes(relation)
                found["faults"] = [{"file": fault.file, "page": fault.page, "what": fault.message} for fault in faults]
            print_json(found)
        else:
            out.print(summary(relation))
            out.print(_columns(relation))
            _report(faults, relation.page_count, [] if faults is None else _notes(relation))
    if faults:
        raise typer.Exit(1)


def describe(relation: Relation) -> dict[str, Any]:
    """Return everything that `inspect` prints, ready for JSON."""
    from semistream.relation.builder import NULL_KEYS

    manifest = relation.stored
    return {
        "path": str(relation.path),
        "version": relation.version,
        "rows": relation.row_count,
        "rows_with_null_key_left_out": int(manifest.properties.get(NULL_KEYS, 0)),
        "key": list(relation.key.names),
        "key_unique": relation.unique,
        "key_exact": relation.key.exact,
        "order": "as given" if not relation.clustered else "by key" if relation.times is None else "by key and time",
        "valid_from": manifest.valid_from,
        "valid_to": manifest.valid_to,
        "pages": relation.page_count,
        "page_bytes": relation.page_bytes,
        "fill": manifest.fill,
        "rows_per_page": relation.rows_per_page,
        "bytes": relation.nbytes,
        "index_bytes": relation.index_bytes,
        "filter": _filter(relation),
        "shards": [{"file": shard.pages_file, "rows": shard.rows, "pages": shard.pages} for shard in manifest.shards],
        "columns": {field.name: str(field.type) for field in relation.schema},
        "encodings": _encodings(relation),
        "plain_bytes": _plain_bytes(relation),
        "secondary_indexes": [
            {
                "key": list(index.key),
                "key_unique": all(shard.unique for shard in index.shards),
                "rows": sum(shard.rows for shard in index.shards),
                "bytes": sum(pages for shard in index.shards for _, pages in shard.page_files) * relation.page_bytes,
            }
            for index in manifest.indexes
        ],
    }


def _encodings(relation: Relation) -> dict[str, str]:
    """Return how each column is stored."""
    packed = relation.codec.packings
    stored = set(relation.codec.schema.names)
    return {
        name: f"{packed[name].kind}, {packed[name].width} B" if name in packed else "plain" if name in stored else "key"
        for name in relation.schema.names
    }


def _filter(relation: Relation) -> dict[str, int] | None:
    """Return the shards that have a filter, its bytes on disk, and the keys that updates have added since."""
    found = [shard.filter for shard in relation.stored.shards if shard.filter is not None]
    if not found:
        return None
    nbytes = sum(one.nbytes + 8 * one.added for one in found)
    return {"shards": len(found), "bytes": nbytes, "keys": sum(one.keys for one in found),
            "added_keys": sum(one.added for one in found)}  # fmt: skip


def _plain_bytes(relation: Relation) -> int | None:
    """Return about how many bytes R would have on disk if its columns were not packed; None if they are not."""
    from semistream.tuner.packing_gain import plain_pages

    pages = plain_pages(relation)
    return None if pages is None else pages * relation.page_bytes


def summary(relation: Relation) -> Table:
    """Return a description of a relation as a table."""
    found = describe(relation)
    table = facts(escape(f"Relation {found['path']}, version {found['version']}"))
    null_keys = found["rows_with_null_key_left_out"]
    left_out = f"; {null_keys:,} more had a NULL key and were left out" if null_keys else ""
    table.add_row("rows", f"{found['rows']:,}{left_out}")
    kind = "exact in 64 bits" if found["key_exact"] else "by 64-bit hash, verified"
    unique = "unique" if found["key_unique"] else "repeated"
    table.add_row("key", f"{escape(', '.join(found['key']))} ({unique}; {kind})")
    table.add_row("order", found["order"])
    if found["valid_from"] is not None:
        until = "the key's next row" if found["valid_to"] is None else found["valid_to"]
        table.add_row("valid", escape(f"from {found['valid_from']} until {until}"))
    table.add_row(
        "pages",
        f"{found['pages']:,} of {format_bytes(found['page_bytes'])}, {found['rows_per_page']:.1f} rows each "
        f"(fill {found['fill']:g})",
    )
    plain = found["plain_bytes"]
    saved = "" if plain is None else f", about {found['bytes'] / max(1, plain):.2f} of {format_bytes(plain)} unpacked"
    table.add_row("on disk", f"{format_bytes(found['bytes'])}{saved}")
    share = found["index_bytes"] / max(1, found["bytes"])
    table.add_row("index in memory", f"{format_bytes(found['index_bytes'])} ({share:.2%} of R)")
    if (known := found["filter"]) is not None:
        shards = len(found["shards"])
        few = f" of {known['shards']} of {shards} shards" if known["shards"] < shards else ""
        added = f", {known['added_keys']:,} added since" if known["added_keys"] else ""
        bits = 8 * known["bytes"] / known["keys"]
        table.add_row("filter", f"{format_bytes(known['bytes'])}{few} on disk ({bits:.1f} bits a key{added})")
    rows = [shard["rows"] for shard in found["shards"]]
    spread = f" of {min(rows):,} to {max(rows):,} rows" if len(rows) > 1 else ""
    table.add_row("shards", f"{len(rows)}{spread}")
    for index in found["secondary_indexes"]:
        values = "unique" if index["key_unique"] else "repeated"
        table.add_row(
            "secondary index",
            f"{escape(', '.join(index['key']))} ({values}), {index['rows']:,} rows, {format_bytes(index['bytes'])}",
        )
    return table


def _columns(relation: Relation) -> Table:
    table = facts("Columns")
    for field in relation.schema:
        mark = " [yellow]key[/yellow]" if field.name in relation.key.names else ""
        packing = relation.codec.packings.get(field.name)
        how = "" if packing is None else f" [cyan]packed: {packing.kind}, {packing.width} B[/cyan]"
        table.add_row(escape(field.name), f"{escape(str(field.type))}{mark}{how}")
    return table


def _check(relation: Relation) -> list[Fault]:
    from semistream.relation.damage.verify import find_faults, pages_to_check

    with contextlib.ExitStack() as stack, progress() as bars:
        parts = [relation, *(stack.enter_context(relation.by(columns)) for columns in relation.secondary_indexes)]
        total = sum(map(pages_to_check, parts))
        task = stack.enter_context(step(bars, "Checking", total, unit="pages"))
        found = [fault for part in parts for fault in find_faults(part, lambda pages: bars.update(task, advance=pages))]
        return list(dict.fromkeys(found))


def _notes(relation: Relation) -> list[str]:
    from semistream.relation.damage.verify_files import filter_notes, format_notes

    return [*format_notes(relation.stored), *filter_notes(relation.place, relation.stored)]


def _report(faults: list[Fault] | None, pages: int, notes: list[str]) -> None:
    if faults is None:
        return
    if not faults:
        out.print(f"[green]✓[/green] All {pages:,} pages are as they were written.")
    for note in notes:
        errors.print(f"[yellow]![/yellow] {note}.", soft_wrap=True)
    for fault in faults:
        errors.print(f"[red]✗[/red] {escape(fault.message)}", soft_wrap=True)
