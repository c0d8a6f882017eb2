"""One line per micro-batch of ``semistream run``, printed when the batch ends."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console

from semistream.core.units import format_count
from semistream.spark.monitoring.listening import BatchReport

if TYPE_CHECKING:
    from semistream.spark.pipeline.plan import PipelinePlan

__all__ = ["BatchLines"]

_HEADINGS = f"{'batch':>6} {'rows':>9} {'rows/s':>8} {'backlog':>8} {'seconds':>9}"
_DEAD = f" {'dead':>7}"
_OF_JOIN = f"{'memory':>7} {'pages':>7} {'no match':>8} {'NULL':>6} {'parked':>7} {'late':>6} {'v':>3}"
_REPEATED = 30
"""Number of lines after which a terminal shows the headings again."""
_SECONDS = {"millisecond": 1e-3, "second": 1.0, "minute": 60.0, "hour": 3600.0}


class BatchLines(BatchReport):
    """Prints what a micro-batch did: rows, rows per second, backlog of the source, and seconds.

    A batch that took longer than the trigger interval is marked. For each join the line has: the share of rows answered
    from memory, pages read, rows without a match, rows with a NULL key, parked rows, parked rows that found their match
    in this batch ("late"), and the version of R. Dead letters are counted if the pipeline can have them. A batch
    without new rows gets a line only if parked rows were matched or expired in it.
    A terminal shows columns under headings. Elsewhere each line names its numbers.
    """

    def __init__(self, plan: PipelinePlan, console: Console) -> None:
        self._console = console
        self._names = [join.name for join in plan.joins]
        self._letters = plan.has_dead_letters
        self._every = _interval(plan.trigger)
        self._lines = 0

    def add(self, batch: Mapping[str, Any]) -> None:
        if not batch["rows"] and not batch.get("dead") and not any(map(_left_parking, batch["joins"].values())):
            return
        self._lines += 1
        if self._console.is_terminal:
            if self._lines % _REPEATED == 1:
                self._print(self._headings())
            self._print(self._columns(batch))
        else:
            self._print(self._sentence(batch))

    def _print(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, markup=False)

    def _headings(self) -> str:
        first = _HEADINGS + _DEAD * self._letters
        width = len(_OF_JOIN)
        above = " " * len(first) + "".join(f" │ {name[:width]:<{width}}" for name in self._names)
        return f"{above}\n{first}" + f" │ {_OF_JOIN}" * len(self._names)

    def _columns(self, batch: Mapping[str, Any]) -> str:
        late = "!" if self._late(batch) else " "
        line = (
            f"{batch['batch']:>6} {batch['rows']:>9,} {_count(batch.get('service_rate')):>8} "
            f"{_left(batch.get('backlog')):>8} {_seconds(batch):>8.2f}{late}"
        )
        if self._letters:
            line += f" {_count(batch.get('dead')):>7}"
        for name in self._names:
            one = batch["joins"].get(name)
            if one is None or not one.get("tasks"):
                line += " │ " + " " * len(_OF_JOIN)
                continue
            parked = one.get("parked") or {}
            line += (
                f" │ {_hits(one):>7} {_count(one['pages_read']):>7} {_count(one['unmatched'] - one['null_keys']):>8} "
                f"{_count(one['null_keys']):>6} {_count(parked.get('waiting')):>7} "
                f"{_count(parked.get('found_late')):>6} {_version(one):>3}"
            )
        return line

    def _sentence(self, batch: Mapping[str, Any]) -> str:
        late = f", longer than the trigger interval of {self._every:g} s" if self._late(batch) else ""
        line = (
            f"batch {batch['batch']}: {batch['rows']:,} rows, {_count(batch.get('service_rate'))} rows/s, "
            f"backlog {_left(batch.get('backlog'))}, {_seconds(batch):.2f} s{late}"
            + (f", {batch.get('dead', 0):,} dead letters" if self._letters else "")
        )
        for name, one in batch["joins"].items():
            if one.get("tasks"):
                nulls = f", {one['null_keys']:,} with a NULL key" if one["null_keys"] else ""
                parked = _parked_text(one["parked"]) if one.get("parked") else ""
                line += (
                    f"; {name}: {_hits(one)} from memory, {one['pages_read']:,} pages read, "
                    f"{one['unmatched'] - one['null_keys']:,} without a match{nulls}{parked}, version {_version(one)}"
                )
        return line

    def _late(self, batch: Mapping[str, Any]) -> bool:
        return self._every is not None and _seconds(batch) > self._every


def _interval(trigger: str | None) -> float | None:
    """Return the interval of a trigger such as ``10 seconds``, in seconds; None if the trigger has no interval.

    >>> _interval("10 seconds"), _interval("1 minute"), _interval("available now")
    (10.0, 60.0, None)
    """
    found = re.fullmatch(r"([\d.]+) *(\w+?)s?", trigger or "")
    return float(found[1]) * _SECONDS[found[2]] if found and found[2] in _SECONDS else None


def _seconds(batch: Mapping[str, Any]) -> float:
    return float(batch["seconds"].get("triggerExecution", 0.0))


def _left(backlog: Mapping[str, int] | None) -> str:
    if not backlog:
        return "–"
    return _count(backlog["rows"]) if "rows" in backlog else f"{backlog.get('files', 0)} files"


def _hits(one: Mapping[str, Any]) -> str:
    keyed = one["rows_done"] - one["null_keys"]
    return f"{one['cache_hits'] / keyed:.0%}" if keyed > 0 else "–"


def _left_parking(one: Mapping[str, Any]) -> bool:
    parked = one.get("parked") or {}
    return bool(parked.get("found_late") or parked.get("expired"))


def _parked_text(parked: Mapping[str, int]) -> str:
    """Return how many rows are parked, and how many were matched late or expired in this batch.

    >>> _parked_text({"waiting": 12, "found_late": 3, "expired": 0})
    ', 12 parked, 3 found late'
    """
    found = f", {parked['found_late']:,} found late" if parked["found_late"] else ""
    given_up = f", {parked['expired']:,} expired" if parked["expired"] else ""
    return f", {parked['waiting']:,} parked{found}{given_up}"


def _version(one: Mapping[str, Any]) -> str:
    return str(max((shard["version"] for shard in one.get("shards", ())), default="–"))


def _count(value: float | None) -> str:
    return "–" if value is None else format_count(value)
