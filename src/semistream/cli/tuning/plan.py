"""``semistream plan``: predicts the cluster size that a stream needs, with the same models as ``tune``."""

from __future__ import annotations

from typing import Annotated

import typer

from semistream.cli.console import errors, facts, out, print_json
from semistream.core.arguments import check_at_least
from semistream.core.units import format_bytes, format_count, memory_bytes, parse_bytes, parse_count

__all__ = ["plan"]


def plan(
    relation_rows: Annotated[str, typer.Option(help="Rows of R, such as 2G.", show_default=False)],
    rate: Annotated[str, typer.Option(help="Stream tuples per second to process, such as 1.5M.", show_default=False)],
    memory: Annotated[
        str, typer.Option("--memory", "-m", help="Memory of all shards together: 64GB, or 5% of R.", show_default=False)
    ],
    row_bytes: Annotated[int, typer.Option(help="Bytes of a row of R.")] = 120,
    zipf: Annotated[float, typer.Option(help="Zipf exponent of the stream's keys.")] = 1.0,
    stream_bytes: Annotated[int, typer.Option(help="Bytes of a stream tuple.")] = 20,
    rows_per_key: Annotated[float, typer.Option(help="Rows of R with the same key.")] = 1.0,
    page_size: Annotated[str, typer.Option(help="Bytes of a page.")] = "8KiB",
    per_shard: Annotated[bool, typer.Option("--per-shard", help="--memory is the budget of each shard.")] = False,
    algorithm: Annotated[
        list[str] | None,
        typer.Option("--algorithm", "-a", help="Only this join; repeatable. By default all.", show_default=False),
    ] = None,
    constants: Annotated[
        str | None,
        typer.Option(help="Costs to use, by name or file. By default this machine's.", show_default=False),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Number of machines and cores of each, such as 4x8; prints settings for them.", show_default=False
        ),
    ] = None,
    store_latency: Annotated[
        str | None,
        typer.Option(help="R is in an object store with this latency, such as 20ms.", show_default=False),
    ] = None,
    local: Annotated[
        str | None, typer.Option(help="Local tier (disk cache) of each machine: 20GB, or 25% of R.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict how many shards a stream needs, the memory of each, and the rate and hit ratio to expect.

    Each shard is one task with its own disk or, with --cluster, one core of a machine. Nothing is read: R need not
    exist.
    """
    from semistream.cli.tuning.tune import costs_text, rate_table, split_text
    from semistream.cli.tuning.words import wide_enough, words_of
    from semistream.costs import costs_of, load_constants
    from semistream.tuner import plan as find_plan
    from semistream.tuner.cluster_plan import Machines, parse_machines, parse_seconds

    costs = load_constants(constants)
    for one in algorithm or ():
        costs_of(one)
    rows = int(parse_count(relation_rows))
    check_at_least(1, relation_rows=rows, row_bytes=row_bytes)
    size = rows * row_bytes
    budget = memory_bytes(memory, size, rows)
    machines = None
    if cluster is not None:
        latency = None if store_latency is None else parse_seconds(store_latency)
        tier = 0 if local is None else parse_bytes(local, of=size)
        machines = Machines(*parse_machines(cluster), latency, tier)
        costs = machines.costs(costs, size)
    elif store_latency is not None or local is not None:
        raise ValueError(
            "--store-latency and --local need --cluster; give the number of machines and cores, such as 4x8"
        )
    with errors.status("planning …"):
        found = find_plan(
            rows, row_bytes, parse_count(rate), memory=budget, exponent=zipf, stream_bytes=stream_bytes,
            page_bytes=parse_bytes(page_size), rows_per_key=rows_per_key, per_shard=per_shard, algorithms=algorithm,
            constants=costs,
        )  # fmt: skip
    advice = {} if machines is None else {"cluster": machines.advice(found)}
    if json:
        print_json(found.as_dict() | advice)
        return
    best, setting = found.prediction, found.tuning.setting
    table = facts(f"R of {format_count(rows)} rows, {format_bytes(size)}; Zipf {zipf:g}")
    table.add_row(
        "shards", f"[bold]{found.shards}[/bold], each {format_bytes(setting.pages * setting.page_bytes)} of R"
    )
    given = budget * found.shards if per_shard else budget
    unused = "" if found.memory >= given * 0.99 else f"; the rest of {format_bytes(given)} would stay unused"
    table.add_row("memory", f"{format_bytes(found.memory_per_shard)} each, {format_bytes(found.memory)} in all{unused}")
    table.add_row("join", f"{best.algorithm}: {split_text(best)}")
    table.add_row("hit ratio", f"{best.hit_ratio:.0%} of the stream is answered from memory")
    table.add_row("rate", f"{format_count(best.rate)}/s per shard, [bold]{format_count(found.rate)}/s[/bold] in all")
    table.add_row(
        "busiest shard",
        f"{found.busiest_share:.2%} of the stream, because frequent keys are distributed unevenly; an even share is "
        f"{1 / found.shards:.2%}",
    )
    table.add_row("costs", costs_text(costs))
    for name, line in [] if machines is None else machines.lines(found, size):
        table.add_row(name, line)
    out.print(table)
    out.print("\nOne shard, with each join at its best split:", style="dim")
    out.print(rate_table(found.tuning.predictions, best.algorithm))
    out.print(words_of(found.tuning.predictions if wide_enough() else [best]))
