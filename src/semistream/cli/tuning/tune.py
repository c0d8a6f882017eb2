"""``semistream tune``: recommends a join and the split of its memory; ``--calibrate`` measures this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from semistream.cli.console import errors, facts, out, print_json
from semistream.cli.path_arguments import read_place
from semistream.cli.tuning.words import wide_enough, words_of
from semistream.core.units import format_bytes, format_count

if TYPE_CHECKING:
    from semistream.costs import Constants, Prediction
    from semistream.relation.relation import Relation
    from semistream.tuner import PackingGain, Skew, Tuning

__all__ = ["constants_table", "costs_text", "gain_text", "rate_table", "split_text", "tune"]

_SYMBOLS = {
    "probe": ("c_H", "look a key up"),
    "emit": ("c_O", "produce a result row"),
    "evict": ("c_E", "remove a waiting tuple"),
    "admit": ("c_S", "read a stream tuple"),
    "append": ("c_A", "queue a tuple"),
    "record": ("c_F", "record a frequency"),
    "buffer": ("c_AI", "buffer a tuple between phases"),
}


def tune(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[RELATION]", help="Directory of the relation.", show_default=False, parser=read_place),
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", "-m", help="The join's budget: 64MB, or 5% of R.", show_default=False)
    ] = None,
    sample: Annotated[
        list[Path] | None,
        typer.Option(help="Parquet, CSV or Arrow file of stream tuples, to estimate the skew.", show_default=False),
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            help="NAME=TYPE of a CSV column of the sample; repeatable. Keys have R's type.",
            show_default=False,
        ),
    ] = None,
    on: Annotated[
        list[str] | None,
        typer.Option(help="The sample's key column; repeatable. By default the name in R.", show_default=False),
    ] = None,
    exponent: Annotated[
        float | None,
        typer.Option(help="Zipf exponent of the stream, instead of a sample. By default 1.", show_default=False),
    ] = None,
    algorithm: Annotated[
        list[str] | None,
        typer.Option("--algorithm", "-a", help="Only this join; repeatable. By default all.", show_default=False),
    ] = None,
    constants: Annotated[
        str | None,
        typer.Option(help="Costs to use, by name or file. By default this machine's.", show_default=False),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="First measure the cost of operations and reads, and save it.")
    ] = False,
    name: Annotated[str, typer.Option(help="Name under which measured costs are saved.")] = "local",
    measure: Annotated[
        bool,
        typer.Option(
            "--measure", help="Run the two best on the sample, one second each. Automatic if the fit is poor."
        ),
    ] = False,
    curve: Annotated[
        Path | None, typer.Option(help="Draw predicted rates over memory and cache size, to a .svg or .png file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict the rate of every join at its best split of a memory budget, and recommend one."""
    from semistream.cli.tuning.tune_chart import check_image

    if path is None and not calibrate:
        raise ValueError("name a relation and its --memory, or measure this machine with --calibrate")
    if path is not None and memory is None and not calibrate:
        raise ValueError(f"how much memory may a join with {path} have? Give --memory, such as 64MB or 5%")
    if sample and exponent is not None:
        raise ValueError("give a --sample to estimate the exponent from, or the --exponent, not both")
    if measure and not (sample and path is not None and memory is not None):
        raise ValueError("--measure runs joins on a --sample of the stream; give one, a relation, and its --memory")
    if curve is not None:
        check_image(curve)
    if path is None:
        measured = _measured(name, None)
        _keep(measured)
        _show_constants(measured, json)
        return
    _tune(path, memory, sample, types or [], on, exponent, algorithm, constants, calibrate, name, measure, curve, json)


def _tune(
    path: Path, memory: str | None, sample: list[Path] | None, types: list[str], on: list[str] | None,
    exponent: float | None, algorithms: list[str] | None, constants: str | None, calibrate: bool, name: str,
    measure: bool, curve: Path | None, json: bool,
) -> None:  # fmt: skip
    from semistream.cli.tuning.stream_sample import StreamSample
    from semistream.core.units import memory_bytes
    from semistream.costs import costs_of, load_constants
    from semistream.relation.relation import Relation
    from semistream.tuner import describe, packing_gain, sample_rows, skew_of, try_best
    from semistream.tuner import tune as find_best
    from semistream.tuner.skew import check_exponent

    chosen = None if constants is None else load_constants(constants)
    for one in algorithms or ():
        costs_of(one)
    if exponent is not None:
        check_exponent(exponent)
    with Relation.open(path) as relation:
        # check all arguments before anything is measured or written
        total = None if memory is None else memory_bytes(memory, relation.nbytes, relation.row_count)
        schema, skew, batches = None, None, []
        if sample:
            taken = StreamSample.of(sample, types, on or list(relation.key.names), relation)
            schema, batches = taken.schema, sample_rows(taken.batches())
            with errors.status("estimating the skew …"):
                skew = skew_of(relation, batches, on or relation.key.names)
            if taken.strangers:
                errors.print(f"[yellow]{taken.strangers:,} rows of the sample have {escape(taken.warning)}[/yellow]")
        if calibrate:
            chosen = _measured(name, relation)
        if total is None:
            assert chosen is not None
            _keep(chosen)
            _show_constants(chosen, json)
            return
        with errors.status("comparing joins …") as status:
            setting = describe(
                relation, schema, exponent=skew.exponent if skew else 1.0 if exponent is None else exponent,
                shape=skew.shape if skew else "random", constants=chosen,
            )  # fmt: skip
            tuning = find_best(relation, total, setting=setting, skew=skew, algorithms=algorithms)
            if batches and (measure or (skew is not None and not skew.fits)):
                keys = on or relation.key.names
                tuning = try_best(relation, tuning, batches, keys, note=lambda name: status.update(f"trying {name} …"))
            gain = packing_gain(relation, setting, tuning.best, total)
            if curve is not None:
                from semistream.cli.tuning.tune_chart import draw

                draw(tuning, curve, lambda text: status.update(f"{text} …"))
        if calibrate and chosen is not None:
            _keep(chosen)  # only now, so that a failure changes nothing
        if json:
            measured = {"measured": _as_json(chosen)} if calibrate and chosen is not None else {}
            print_json({**tuning.as_dict(), "packing": None if gain is None else gain.as_dict(), **measured})
            return
        if calibrate and chosen is not None:
            _show_constants(chosen, json=False)
        _show(relation, tuning, on, gain)
        if curve is not None:
            out.print(f"Drew {escape(str(curve))}")


def _measured(name: str, relation: Relation | None) -> Constants:
    from semistream.tuner import calibrate

    with errors.status("measuring …") as status:
        return calibrate(name, relation, progress=lambda text: status.update(f"measuring {text} …"))


def _keep(constants: Constants) -> None:
    """Save measured costs under their name."""
    from semistream.core.machine import describe_machine
    from semistream.costs import save_constants

    file = save_constants(constants, machine=describe_machine())
    errors.print(f"[dim]Saved as {escape(repr(constants.name))}: {escape(str(file))}[/dim]", soft_wrap=True)


def _as_json(constants: Constants) -> dict[str, Any]:
    import dataclasses

    return dataclasses.asdict(constants) | {"processor": dict(constants.processor)}


def _show_constants(constants: Constants, json: bool) -> None:
    if json:
        print_json(_as_json(constants))
        return
    out.print(constants_table(constants))


def constants_table(constants: Constants) -> Table:
    """Return the costs with the symbols of the papers."""
    table = facts(f"Costs of {constants.name!r}")
    for name, (symbol, what) in _SYMBOLS.items():
        table.add_row(symbol, f"{getattr(constants, name):7.1f} ns  {what}")
    queued = constants.queued_seek_seconds * 1e6
    table.add_row(
        "S", f"{constants.seek_seconds * 1e6:7.1f} μs  start of a read ({queued:.1f} μs if many are in flight)"
    )
    page = format_bytes(constants.page_bytes)
    table.add_row("T", f"{constants.transfer_seconds * 1e6:7.1f} μs  each page of {page}")
    table.add_row("c_T", f"{constants.turn * 1e-3:7.1f} μs  one iteration of the loop, without its tuples and reads")
    for name, factor in constants.processor:
        table.add_row(name, f"{factor:7.1f} ×   measured cost of its operations, relative to these costs")
    return table


def _show(relation: Relation, tuning: Tuning, on: list[str] | None, gain: PackingGain | None) -> None:
    from semistream.joins import find

    table = facts()
    table.add_row("relation", f"{relation.row_count:,} rows, {format_bytes(relation.nbytes)}")
    if gain is not None:
        table.add_row("packed", gain_text(gain))
    table.add_row("memory", f"{format_bytes(tuning.memory)}, {tuning.memory / max(1, relation.nbytes):.2%} of R")
    table.add_row("stream", _stream_text(tuning))
    table.add_row("costs", costs_text(tuning.setting.constants))
    out.print(table)
    out.print(rate_table(tuning.predictions, tuning.best.algorithm, tuning.measured))
    out.print(words_of(tuning.predictions if wide_enough() else [tuning.best], measured=bool(tuning.measured)), "")
    if not tuning.measured and tuning.best.rate < tuning.predictions[0].rate:
        out.print(
            f"[dim]{tuning.best.algorithm} is recommended on a device without seeks: others reach their rates "
            "only if tuples may wait; --measure with a --sample compares it with the next best[/dim]"
        )
    endless = [found.algorithm for found in tuning.predictions if not find(found.algorithm).bounded_wait]
    for name in endless:
        alone = name == tuning.best.algorithm
        told = "was requested, but is not recommended" if alone else "is never recommended"
        out.print(f"[dim]{name} {told}: a tuple with a rare key may wait in it forever[/dim]")
    for name, error in tuning.refused.items():
        out.print(f"[dim]{name} needs at least {format_bytes(error.minimum)}[/dim]")
    keys = on or list(relation.key.names)
    key = repr(keys[0]) if len(keys) == 1 else repr(keys)
    options = "".join(f", {name}={_short(value)}" for name, value in tuning.best.options.items())
    out.print(
        f"semistream.create({tuning.best.algorithm!r}, relation, on={key}, memory={tuning.memory}{options})",
        style="bold", soft_wrap=True, markup=False,
    )  # fmt: skip
    out.print("\nIn a pipeline file:", style="dim")
    out.print(_snippet(relation, tuning, keys), soft_wrap=True, markup=False)


def _snippet(relation: Relation, tuning: Tuning, keys: list[str]) -> str:
    """Return the recommendation as a join of a pipeline file."""
    import json

    lines = {
        "relation": json.dumps(str(relation.path)),
        "on": json.dumps(keys[0] if len(keys) == 1 else keys),
        "algorithm": json.dumps(tuning.best.algorithm),
        "memory": json.dumps(f"{tuning.memory}B"),
    }
    lines |= {f"options.{name}": _short(value) for name, value in tuning.best.options.items() if value is not None}
    return "\n".join(["[[join]]", *(f"{name} = {value}" for name, value in lines.items())])


def costs_text(constants: Constants) -> str:
    """Return the name of the costs, and whether they were not measured on this machine."""
    from semistream.costs.basis.constants import DEFAULT, MEASURED

    if constants.name not in (DEFAULT, MEASURED):
        return escape(constants.name)
    return f"{constants.name}, [yellow]not measured on this machine[/yellow]; semistream tune --calibrate does that"


def _stream_text(tuning: Tuning) -> str:
    where = {"random": "spread over R", "noperm": "together in R"}[tuning.setting.shape]
    if tuning.skew is None:
        return f"Zipf {tuning.setting.exponent:g}, as given, frequent keys {where}"
    return f"{skew_text(tuning.skew)}, frequent keys {where}"


def gain_text(gain: PackingGain) -> str:
    """Return what packing brings, in one line."""
    share = gain.stored_bytes / gain.plain_bytes
    stored = f"about {share:.2f} of {format_bytes(gain.plain_bytes)} unpacked"
    if gain.plain_rate is None:
        return f"{stored}, for which this memory is too small"
    return f"{stored}; {gain.algorithm} {format_count(gain.rate)} tuples/s instead of {format_count(gain.plain_rate)}"


def skew_text(skew: Skew) -> str:
    """Return the skew that was estimated from a sample."""
    fit = "a good fit" if skew.fits else "[yellow]a poor fit: predictions are rough[/yellow]"
    return (
        f"Zipf {skew.exponent:.2f} ± {2 * skew.error:.2f} from {skew.sample:,} tuples with {skew.distinct:,} keys "
        f"({fit}, distance {skew.distance:.3f})"
    )


def rate_table(predictions: list[Prediction], recommended: str, measured: dict[str, float] | None = None) -> Table:
    """Return predictions as a table, the fastest first, with measured rates if there are any."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("join", style="cyan", no_wrap=True)
    for heading in ("tuples/s", *(["measured"] if measured else []), "hits", "tuples/read"):
        table.add_column(heading, justify="right", no_wrap=True)
    if wide_enough():
        table.add_column("split")
    for found in predictions:
        mark = "[green]→[/green] " if found.algorithm == recommended else "  "
        table.add_row(
            mark + found.algorithm, f"[bold]{format_count(found.rate)}[/bold]", *_tried(found.algorithm, measured),
            f"{found.hit_ratio:.0%}",
            format_count(1 / found.reads) if found.reads > 1e-9 else "no reads",
            *([split_text(found)] if wide_enough() else []),
        )  # fmt: skip
    return table


def _tried(algorithm: str, measured: dict[str, float] | None) -> list[str]:
    if not measured:
        return []
    return [f"[bold]{format_count(measured[algorithm])}[/bold]" if algorithm in measured else ""]


def split_text(found: Prediction) -> str:
    """Return the options of a prediction in a few words."""
    return ", ".join(f"{name} {_short(value)}" for name, value in found.options.items() if value is not None)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
