"""Write the tables of the results pages from the raw results.

A page marks the place of a table with ``<!-- table: NAME -->`` and its end with ``<!-- end -->``. Run this script after
a new result was stored; a test compares the pages with the raw results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
PLACE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
NAMES = {
    "device_limit": "limit of the device",
    "duckdb": "DuckDB over the Parquet file",
    "duckdb_memory": "DuckDB, all of R in memory",
    "lmdb": "LRU in front of LMDB",
    "lookup": "`Relation.lookups`",
    "quix_sqlite": "Quix Streams' look-up join, R in SQLite",
    "rocksdb": "LRU in front of RocksDB",
    "sqlite": "LRU in front of SQLite",
    "spark": "Spark's stream-static join",
}
"""What pages call a contestant that is not one of our joins."""


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / "results" / f"{name}.json").read_text())
    return found


def _rate(rate: float) -> str:
    return f"{rate / 1e6:.2f} M" if rate >= 1e6 else f"{rate / 1e3:.0f} k" if rate >= 1e5 else f"{rate / 1e3:.1f} k"


def _ratio(ratio: float) -> str:
    return f"{ratio:.0f} ×" if ratio >= 10 else f"{ratio:.1f} ×" if ratio >= 2 else f"{ratio:.2f} ×"


def _bytes(number: float) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"


def _seconds(seconds: float) -> str:
    return f"{1e6 * seconds:.0f} µs" if seconds < 1e-3 else f"{1e3 * seconds:.1f} ms"


def _table(head: str, left: int, rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table, of which the first ``left`` columns are text."""
    names = head.split("|")
    rule = ["---"] * left + ["---:"] * (len(names) - left)
    lines = [[name.strip() for name in names], rule, *([cell or " " for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("| --- ", "|---").replace("| ---: ", "|---:")


def _measured(*results: dict[str, Any]) -> str:
    days = sorted({found["when"][:10] for found in results})
    commits = sorted({found["commit"][:8] for found in results if "commit" in found})
    machine = results[0]["machine"]
    memory = machine["memory_bytes"] / 1e9
    made = f", commit {', '.join(commits)}" if commits else ""
    return f"\n*{machine['cores']} cores of {machine['cpu']}, {memory:.0f} GB, {' and '.join(days)}{made}.*\n"


def _spark() -> str:
    results = ("100k", "1m", "40m-rows", "catalogue-100k", "catalogue-1m")
    found = [_read(f"spark-{name}") for name in results]
    rows = []
    for one in found:
        ours, theirs = one["joins"]["ours"], one["joins"]["stream_static"]
        rows.append(
            (
                f"{one['plan']['layout']}, {one['plan']['rows'] / 1e6:.0f} M rows, {_bytes(one['relation']['bytes'])}",
                f"{one['plan']['batch_rows']:,}",
                _bytes(ours["memory"]),
                f"{_rate(one['ours'])} rows/s",
                f"{_rate(one['stream_static'])} rows/s",
                f"**{_ratio(one['ratio'])}**",
                f"{ours['median_seconds']:.2f} s",
                f"{theirs['median_seconds']:.2f} s",
                f"{ours['hit_ratio']:.0%}",
                f"{ours['pages_read']:,.0f}",
            )
        )
    head = (
        "R | micro-batch | memory | semistream | stream-static | ratio | our batch | Spark's batch | hits | "
        "pages per batch"
    )
    return _table(head, 2, rows) + _measured(*found)


def _star() -> str:
    found = _read("star")["points"]
    whole = all("over_one_shard" in one and "empty" in one for one in found)
    rows = [
        (
            f"{one['products']:,}",
            f"{one['batch']:,}",
            f"{_rate(one['ours'])} rows/s",
            f"{_rate(one['chain'])} rows/s",
            f"{_rate(one['spark'])} rows/s",
            f"{_rate(one['cached'])} rows/s" if "cached" in one else "–",
            _ratio(one["over_chain"]),
            f"**{_ratio(one['over_spark'])}**",
            *((_ratio(one["over_one_shard"]), _empty_star(one["empty"])) if whole else ()),
        )
        for one in found
    ]
    head = "products | micro-batch | one pass | chain of joins | Spark | Spark, cached | over the chain | over Spark"
    return _table(head + " | time with one shard | no rows" * whole, 2, rows) + _measured(*found)


def _empty_star(found: dict[str, Any]) -> str:
    return f"{1000 * found['star']:.0f} ms, {_ratio(found['over_one'])} one join"


def _spark_fixed() -> str:
    found = _read("spark-100k")
    rows = [
        (
            {"empty": "no rows", "10_rows": "10 rows"}[name],
            *(f"{1000 * one[part]:.0f} ms" for part in ("no_python", "identity", "shuffled_identity", "ours")),
        )
        for name, one in found["fixed"].items()
    ]
    return _table("micro-batch of | no Python stage | identity `mapInArrow` | after a shuffle | our join", 1, rows)


def _peers(name: str) -> str:
    found = _read(name)
    (point,) = found["points"]
    best = max(point["rates"][one] for one, kind in point["kinds"].items() if kind == "join" and one != "adaptivejoin")
    rows = []
    for one, rate in sorted(point["rates"].items(), key=lambda item: -item[1]):
        told = point["contestants"][one]
        rows.append(
            (
                NAMES.get(one, f"`{one}`"),
                f"**{_rate(rate)}**" if one == "adaptivejoin" else _rate(rate),
                f"{rate / best:.2f}",
                f"{told['pages_a_batch'] / 1e3:.1f} k" if told.get("pages_a_batch") else "",
                f"{told['hit_ratio']:.0%}" if told.get("hit_ratio") else "",
                _bytes(told["grew"]) if told.get("grew") and point["kinds"][one] != "limit" else "",
            )
        )
    head = "contestant | tuples/s | relative to the papers' best | pages per batch | hits | process grew by"
    return _table(head, 1, rows) + _measured(found)


def _grid() -> str:
    points = _read("peers-grid")["points"]
    exponents = sorted({point["zipf"] for point in points})
    shares = sorted({point["memory"] for point in points}, key=lambda share: float(share.rstrip("%")))
    kept = {(one["rows"], one["batch"], one["memory"], one["zipf"]): one["rates"] for one in points}
    rows = []
    for rows_of_r, batch in sorted({(one["rows"], one["batch"]) for one in points}):
        for share in shares:
            rates = [kept.get((rows_of_r, batch, share, exponent)) for exponent in exponents]
            if any(rates):
                cells = ["" if one is None else _ratio(one["adaptivejoin"] / one["ssij"]) for one in rates]
                rows.append((f"{rows_of_r / 1e6:.0f} M rows", f"{batch:,}", share, *cells))
    return _table("R | batch | memory | " + " | ".join(f"Zipf {one:g}" for one in exponents), 3, rows)


def _memory(name: str) -> str:
    runs = sorted(_read(name)["runs"], key=lambda run: run["growth"])
    rows = [
        (
            f"`{run['algorithm']}`",
            *(_bytes(run[part]) for part in ("peak_reserved", "growth", "beyond")),
            _bytes(run["creep"]) if run["creep"] > 0 else "0",
        )
        for run in runs
    ]
    head = "join | most reserved | process grew by | beyond the budget | growth in the second half"
    return _table(head, 1, rows) + _measured(_read(name))


def _service_rates() -> str:
    anywhere, together, endless = (_read(f"service-rates-{name}") for name in ("random", "noperm", "continuous"))
    rows = []
    for name, _ in sorted(anywhere["rates"].items(), key=lambda item: -item[1]):
        cells = [f"`{name}`"]
        for found in (anywhere, together):
            one = found["joins"][name]
            cells += [
                _rate(found["rates"][name]),
                f"{one['pages_read'] / len(one['seconds']):,.0f}",
                f"{one['hit_ratio']:.0%}",
            ]
        one = endless["joins"][name]
        cells += [_rate(endless["rates"][name]), f"{one['hit_ratio']:.0%}"]
        rows.append(cells)
    head = "join | anywhere: tuples/s | pages | hits | together: tuples/s | pages | hits | continuous: tuples/s | hits"
    return _table(head, 1, rows) + _measured(anywhere, together, endless)


def _versions() -> str:
    def said(counts: dict[str, int] | None) -> str:
        if counts is None:
            return ""
        return f"{counts['passed']:,} passed" + (f", {counts['skipped']:,} skipped" if counts["skipped"] else "")

    rows = [
        (run["pyspark"], run["python"], said(run["spark"]), said(run.get("quick")), run["day"])
        for run in _read("versions")["runs"]
    ]
    return _table("PySpark | Python | representative tests | tests of `make quick` | day", 5, rows)


def _as_of() -> str:
    found = _read("as-of")
    names = {
        "ours": "`semistream.join(…, as_of=…)`",
        "equality": "our join on equality, as many rows",
        "spark_as_of": "Spark's `LEFT ASOF JOIN`",
        "spark_filter": "Spark's join on equality, and a filter",
    }
    rows = [
        (
            names[name],
            f"{one['median_seconds']:.2f} s",
            f"{_rate(one['rows_per_second'])} rows/s",
            "" if name == "ours" else f"**{_ratio(found['ours'] / one['rows_per_second'])}**",
        )
        for name, one in found["joins"].items()
    ]
    return _table("join | micro-batch | rate | as of, in comparison", 1, rows) + _measured(found)


def _packed() -> str:
    found = [_read(name) for name in ("peers-packed", "peers-packed-tpch")]
    rows = []
    for point in (point for one in found for point in one["points"]):
        packed, plain = (point["contestants"][name] for name in ("adaptivejoin", "adaptivejoin_plain"))
        rates = point["rates"]
        rows.append(
            (
                f"{point['spec']['layout']}, {point['rows'] / 1e6:.0f} M rows",
                f"{point['batch']:,}",
                f"{_rate(rates['adaptivejoin'])} tuples/s",
                f"{_rate(rates['adaptivejoin_plain'])} tuples/s",
                f"**{_ratio(rates['adaptivejoin'] / rates['adaptivejoin_plain'])}**",
                *(f"{one['hit_ratio']:.0%}, {one['pages_a_batch'] / 1e3:.1f} k" for one in (packed, plain)),
            )
        )
    head = "R | batch | packed | plain | ratio | packed: hits, pages per batch | plain: hits, pages per batch"
    return _table(head, 2, rows) + _measured(*found)


def _absent() -> str:
    found = _read("peers-absent")
    (point,) = found["points"]
    names = {"adaptivejoin": "`adaptivejoin`", "adaptivejoin_unfiltered": "the same without filters"}
    rows = [
        (
            names[name],
            f"{_rate(point['rates'][name])} tuples/s",
            f"{one['pages_a_batch'] / 1e3:.1f} k",
            f"{one['hit_ratio']:.0%}",
        )
        for name, one in point["contestants"].items()
    ]
    return _table("contestant | rate | pages per batch | hits", 1, rows) + _measured(found)


def _lookup() -> str:
    found = _read("lookup")["latency"]
    rows = [
        (state, *(_seconds(found[state][size][part]) for size in found[state] for part in ("p50", "p99")))
        for state in found
    ]
    sizes = [f"{int(size):,} key{'s' * (size != '1')}: {part}" for size in found["warm"] for part in ("p50", "p99")]
    return _table(" | ".join(("keys", *sizes)), 1, rows) + _measured(_read("lookup"))


def _lookup_peers() -> str:
    found = _read("peers-lookup")
    (point,) = found["points"]
    rows = [
        (
            NAMES[one],
            f"{_rate(rate)} keys/s",
            f"{_ratio(point['rates']['lookup'] / rate)}" if one != "lookup" else "",
            f"{told['hit_ratio']:.0%}" if (told := point["contestants"][one]).get("hit_ratio") else "",
        )
        for one, rate in sorted(point["rates"].items(), key=lambda item: -item[1])
    ]
    return _table("contestant | rate | `lookups`, in comparison | hits", 1, rows) + _measured(found)


def _store() -> str:
    found = _read("store-catalogue")
    names = {"all": "all of R", "a quarter": "a quarter of R's unpacked bytes", "nothing": "none"}
    rows = [
        (
            names[name],
            f"{place['median']:.2f} s",
            f"**{_ratio(place['times_directory'])}**",
            f"{place['pages'] / len(place['seconds']):,.0f}",
            f"{place['requests'] / len(place['seconds']):,.0f}",
        )
        for name, place in found["places"].items()
        if name in names
    ]
    head = "local tier | batch | relative to a directory | pages per batch | requests per batch"
    return _table(head, 1, rows) + _measured(found)


def _version_rates() -> str:
    found = _read("version-rates")
    rows = [
        (
            version,
            f"{_rate(one['rows_per_second'])} rows/s",
            f"{one['median_seconds']:.2f} s",
            f"{found['over'][version]:.2f} ×",
            "differ" if version in found["differing"] else "equal",
        )
        for version, one in sorted(found["versions"].items())
    ]
    head = f"PySpark | rate | micro-batch | relative to {found['newest']} | rows"
    return _table(head, 1, rows) + _measured(found)


TABLES: dict[str, Callable[[], str]] = {
    "as-of": _as_of,
    "grid": _grid,
    "lookup": _lookup,
    "memory": lambda: _memory("memory"),
    "memory-wide": lambda: _memory("memory-wide"),
    "peers-100k": lambda: _peers("peers-100k"),
    "peers-1m": lambda: _peers("peers-1m"),
    "peers-absent": _absent,
    "peers-lookup": _lookup_peers,
    "peers-packed": _packed,
    "service-rates": _service_rates,
    "spark": _spark,
    "spark-fixed": _spark_fixed,
    "store-catalogue": _store,
    "star": _star,
    "version-rates": _version_rates,
    "versions": _versions,
}


def filled(text: str) -> str:
    """Return the text of a page with its tables as the raw results have them."""
    return PLACE.sub(lambda place: f"{place[1]}\n{TABLES[place[2]]()}\n{place[3]}", text)


def pages() -> list[Path]:
    """Return the pages that have tables."""
    return [page for page in sorted(DOCS.rglob("*.md")) if PLACE.search(page.read_text())]


if __name__ == "__main__":
    for page in pages():
        page.write_text(filled(page.read_text()))
