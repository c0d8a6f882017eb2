"""Turns a plan into a streaming DataFrame, and finds the errors that only Spark can detect.

Nothing is run: Spark analyses expressions and columns, and the join checks keys and memory. A step with an error is
recorded and left out. Later steps are still checked, but only errors that cannot be a consequence are recorded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from semistream.core.errors import (
    BudgetTooSmallError,
    ColumnClashError,
    JoinArgumentError,
    KeyColumnError,
    KeyTypeError,
    SemistreamError,
    UnknownColumnsError,
)
from semistream.relation.keys.key_casts import derived_name
from semistream.spark.joining.join_plan import plan_join
from semistream.spark.joining.missing import MISSING_IN, has_marker
from semistream.spark.joining.stream_join import joined
from semistream.spark.pipeline.binding import PINS
from semistream.spark.pipeline.document import Document, Place
from semistream.spark.pipeline.plan import (
    AVAILABLE_NOW,
    DeduplicatePlan,
    JoinPlan,
    PipelinePlan,
    SinkPlan,
    SourcePlan,
)
from semistream.spark.pipeline.source import LETTER_TEXT, SourceError, read_source
from semistream.spark.relations.change_stream import write_changes
from semistream.spark.relations.key_expressions import folding, quoted
from semistream.spark.relations.types import arrow_schema
from semistream.spark.sinks import BatchSink, DatabaseSink, DeltaSink, ParquetSink
from semistream.spark.sinks.sink import LETTER, check_apart, with_letters

__all__ = ["as_messages", "assemble", "make_sink"]

_CAST = re.compile(r"cast (?:it|the stream's column) first: (.*cast\((.+?) as (.+?)\).*) in SQL, or .*")
_COPY = "__entering_"
"""Prefix of columns that keep the values before the joins, for dead letters."""


def assemble(spark: SparkSession, plan: PipelinePlan, document: Document) -> DataFrame | None:
    """Return the rows for the sink; None if there are errors, which are then in ``document.problems``."""
    return _Assembly(spark, document).rows(plan)


def make_sink(plan: SinkPlan, *, once: bool = False) -> BatchSink[Any] | None:
    """Return our sink, or None if Spark's own sink is used. With ``once``, Parquet files use our sink too."""
    if plan.format == "parquet" and once:
        assert plan.path is not None
        return ParquetSink(plan.path, partition_by=plan.partition_by)
    if plan.format == "delta":
        assert plan.path is not None
        return DeltaSink(plan.path, partition_by=plan.partition_by)
    if plan.format in ("postgresql", "mariadb"):
        assert plan.url is not None
        assert plan.table is not None
        return DatabaseSink(plan.url, plan.table, key=plan.key, password=plan.password)
    return None


def as_messages(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return Kafka messages: the value is a row as JSON; the key is the text of a column, or the JSON of several."""
    value = F.to_json(F.struct(*(quoted(name) for name in rows.columns)), {"ignoreNullFields": "false"})
    if not key:
        return rows.select(value.alias("value"))
    columns = [quoted(name) for name in key]
    text = columns[0].cast("string") if len(columns) == 1 else F.to_json(F.struct(*columns))
    return rows.select(text.alias("key"), value.alias("value"))


class _Assembly:
    def __init__(self, spark: SparkSession, document: Document) -> None:
        self.spark = spark
        self.document = document
        self.whole = True
        """Whether all steps so far succeeded. If not, a missing column may be a consequence of an earlier error."""

    def rows(self, plan: PipelinePlan) -> DataFrame | None:
        frame = None if plan.source is None else self._source(plan.source)
        if frame is None or plan.source is None:
            self.whole = False
            if plan.source is not None:
                self._parse_only(plan.source.derive, (*plan.source.place, "derive"))
            self._parse_only(plan.derive, ("derive",))
            self._parse_only(plan.filter, ("filter",))
            return None
        frame = self._derived(frame, plan.source.derive, (*plan.source.place, "derive"))
        frame = self._filtered(frame, plan.filter.get("before"), ("filter", "before"))
        if plan.deduplicate is not None:
            frame = self._deduplicated(frame, plan.deduplicate)
        elif "deduplicate" in self.document.root:
            self.whole = False
        # A join that could not be read was recorded before, and is missing here.
        self.whole = self.whole and len(plan.joins) == len(self.document.root.sections("join"))
        entering = [name.removeprefix(_COPY) for name in frame.columns]
        if plan.has_dead_letters:
            frame = self._with_copies(frame, plan)
        for step in plan.joins:
            frame = self._joined(frame, step, plan)
        frame = self._derived(frame, plan.derive, ("derive",))
        frame = self._filtered(frame, plan.filter.get("after"), ("filter", "after"))
        if plan.sink is not None:
            letters = plan.dead_letters
            frame = self._fitting(frame, plan.sink, None if letters is None else letters.columns or entering)
        if plan.dead_letters is not None and LETTER in frame.columns:
            frame = self._checked_letters(frame, plan.dead_letters, plan.sink)
        return None if self.document.problems else frame

    def _try(self, place: Place, step: Callable[[], DataFrame], frame: DataFrame) -> DataFrame:
        """Return the result of a step on ``frame``; if the step fails, record why and return ``frame``."""
        try:
            return step()
        except (PySparkException, SemistreamError) as error:
            if self.whole or not _may_follow(error):
                self.document.note(place, explained(error))
            self.whole = False
            return frame

    def _source(self, plan: SourcePlan) -> DataFrame | None:
        try:
            return read_source(self.spark, plan, _COPY + LETTER_TEXT)
        except (PySparkException, SemistreamError) as error:
            self.document.note((*plan.place, _wrong_key(error)), explained(error))
            return None

    def _derived(self, frame: DataFrame, derive: Mapping[str, str], place: Place) -> DataFrame:
        for name, text in derive.items():
            before = frame
            frame = self._try((*place, name), lambda: _checked(before.withColumn(name, F.expr(text))), before)  # noqa: B023
        return frame

    def _filtered(self, frame: DataFrame, condition: str | None, place: Place) -> DataFrame:
        """Return the rows that meet a condition, and all dead letters, because they have their own sink."""
        if condition is None:
            return frame

        def step() -> DataFrame:
            found = _checked(frame.where(F.expr(condition)))
            return frame.where(F.expr(condition) | quoted(MISSING_IN).isNotNull()) if has_marker(frame) else found

        whole = self.whole
        filtered = self._try(place, step, frame)
        self.whole = whole  # a wrong condition removes no columns
        return filtered

    def _parse_only(self, derive: Mapping[str, str], place: Place) -> None:
        """Record expressions that are not valid SQL, independent of the columns."""
        for name, text in derive.items():
            try:
                F.expr(text)
            except ParseException as error:
                self.document.note((*place, name), explained(error))

    def _deduplicated(self, frame: DataFrame, plan: DeduplicatePlan) -> DataFrame:
        marked = self._try(
            (*plan.place, "within"), lambda: _checked(frame.withWatermark(plan.watermark, plan.within)), frame
        )
        missing = [name for name in (*plan.columns, plan.watermark) if name not in frame.columns]
        for name in missing if self.whole else ():
            key = "watermark" if name == plan.watermark else "columns"
            self.document.note((*plan.place, key), _no_column(name, frame.columns))
        if missing or marked is frame:
            self.whole = False
            return frame
        # Malformed rows have NULLs in these columns, but are not duplicates of each other.
        columns = [*plan.columns, *(name for name in frame.columns if name.startswith(_COPY))]
        return self._try((*plan.place, "columns"), lambda: marked.dropDuplicatesWithinWatermark(columns), frame)

    def _with_copies(self, frame: DataFrame, plan: PipelinePlan) -> DataFrame:
        """Return the stream with copies of columns that later steps replace; a dead letter is the original row."""
        fold = folding(frame)
        replaced = {fold(name) for name in (*(step.on[0] for step in plan.joins if step.surrogate), *plan.derive)}
        names = [name for name in frame.columns if fold(name) in replaced]
        return frame.select("*", *(quoted(name).alias(_COPY + name) for name in names))

    def _checked_letters(self, frame: DataFrame, plan: SinkPlan, facts: SinkPlan | None) -> DataFrame:
        letters = frame.select(f"{LETTER}.*")
        for key, names in {"columns": plan.columns, "key": plan.key, "partition_by": plan.partition_by}.items():
            for name in names:
                if name not in letters.columns:
                    self.document.note((*plan.place, key), _no_column(name, letters.columns))

        def step() -> DataFrame:
            sink = make_sink(plan, once=True) if plan.url or plan.path else None
            if sink is not None:
                sink.check(arrow_schema(letters.schema))
                other = None if facts is None else make_sink(facts, once=True)
                if other is not None:
                    check_apart(other, sink)
            return frame

        return self._try(plan.place, step, frame)

    def _joined(self, frame: DataFrame, plan: JoinPlan, pipeline: PipelinePlan) -> DataFrame:
        # Settings that the file leaves out have the join's defaults.
        given = {"memory": plan.memory, "algorithm": plan.algorithm, "local": plan.local}
        settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        pins = None if pipeline.checkpoint is None else pipeline.checkpoint / PINS

        def step() -> DataFrame:
            planned = plan_join(
                frame, plan.relation, on=plan.on, by=plan.by, how=plan.how, on_missing=plan.on_missing,
                park_for=plan.park_for, after_park=plan.after_park, park_idle=pipeline.trigger != AVAILABLE_NOW,
                prefix=plan.prefix, suffix=plan.suffix, metrics=plan.name, pins=pins, columns=plan.columns,
                condition=plan.condition, as_of=plan.as_of,
                surrogate=plan.surrogate, unknown=plan.unknown, **settings, **plan.options,
                missing_keys=pipeline.statistics.missing_keys,
            )  # fmt: skip
            return joined(planned)

        try:
            return step()
        except UnknownColumnsError as error:
            for name in error.names:
                key = "surrogate" if name == plan.surrogate else "columns"
                self.document.note((*plan.place, key), f"{plan.relation}: {_no_column(name, error.columns)}")
            self.whole = False
            return frame
        except (PySparkException, SemistreamError, TypeError) as error:  # TypeError: an option that no such join has
            if self.whole or not _may_follow(error):
                key = _wrong_join_key(error)
                place = ("options", key) if key in plan.options else (key,)
                self.document.note((*plan.place, *place), explained(error))
            self.whole = False
            return frame

    def _fitting(self, frame: DataFrame, plan: SinkPlan, entering: Sequence[str] | None) -> DataFrame:
        """Return the columns for the sink and, if the columns before the joins are given, also dead letters."""
        columns = [name for name in frame.columns if name != MISSING_IN and not name.startswith(_COPY)]
        if entering is None:
            columns = frame.columns
        used = {"columns": plan.columns, "key": plan.key, "partition_by": plan.partition_by}
        for key, names in used.items():
            for name in names if self.whole else ():
                if name not in columns:
                    self.document.note((*plan.place, key), _no_column(name, columns))
        if not self.whole or any(name not in columns for names in used.values() for name in names):
            return frame
        kept = list(plan.columns or columns)
        twice = sorted({name for name in kept if frame.columns.count(name) > 1})
        if twice:
            self.document.note(
                plan.place, f"two columns are called {twice[0]!r}; give a join columns, prefix or suffix"
            )
            return frame

        def step() -> DataFrame:
            once = entering is not None
            chosen = frame.select(*(quoted(name) for name in kept)) if kept != frame.columns else frame
            sink = make_sink(plan, once=once) if plan.url or plan.format == "delta" or once else None
            if sink is not None:
                sink.check(arrow_schema(chosen.schema))
            if plan.format == "relation" and plan.path is not None:
                op, order, at = (plan.options.get(name) for name in ("op", "order", "at"))
                # raises if something is wrong; nothing is started
                write_changes(chosen, plan.path, op=op or "op", order=order, at=at)
            if entering is None:
                return chosen
            copies = {name: _COPY + name if _COPY + name in frame.columns else name for name in entering}
            letters = [quoted(copy).alias(name) for name, copy in copies.items() if name != MISSING_IN]
            return _checked(with_letters(frame, kept, letters))

        return self._try(plan.place, step, frame)


def _checked(frame: DataFrame) -> DataFrame:
    """Return ``frame`` after Spark has analysed it; Spark Connect delays that until the schema is requested."""
    frame.schema  # noqa: B018
    return frame


def _no_column(name: str, columns: Sequence[str]) -> str:
    return f"there is no column {name!r}; there are {', '.join(columns)}"


def _wrong_key(error: Exception) -> str:
    """Return the key of ``[source]`` that an error is about."""
    if isinstance(error, SourceError):
        return error.key
    if isinstance(error, ParseException):
        return "schema"
    condition = (error.getCondition() or "") if isinstance(error, PySparkException) else ""
    return "path" if condition in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA") else "format"


def _wrong_join_key(error: Exception) -> str:
    """Return the key of ``[[join]]`` that an error is about."""
    if isinstance(error, ColumnClashError):
        return "prefix"
    if re.search(r"\bas_of\b", str(error)):
        return "as_of"
    if isinstance(error, KeyColumnError | KeyTypeError | PySparkException):
        return "on"
    if isinstance(error, BudgetTooSmallError):
        return "memory"
    if isinstance(error, JoinArgumentError):
        return error.argument
    return "options" if isinstance(error, TypeError) else "algorithm"


def _may_follow(error: Exception) -> bool:
    """Return whether an error may be the consequence of a step that was left out: a missing column."""
    if isinstance(error, ParseException):
        return False
    if isinstance(error, AnalysisException):
        return "UNRESOLVED" in (error.getCondition() or "")
    return type(error).__name__ in ("KeyColumnError", "SinkError")


def _as_derived(remedy: re.Match[str]) -> str:
    """Return how a pipeline file casts a key: to a new column, so that the facts keep the original value."""
    name = derived_name(remedy[2], remedy[3])
    return f'cast it before the join: {name} = "{remedy[1]}" under [source.derive], and on = "{name}"'


def explained(error: Exception) -> str:
    """Return Spark's error without class and query context, or our error in the terms of a pipeline file."""
    if not isinstance(error, PySparkException):
        return _CAST.sub(_as_derived, str(error))
    text = re.split(r"\n|SQLSTATE", str(error).strip())[0].strip().rstrip(".;")
    return re.sub(r"^\[([A-Z_.]+)\]\s*", "", text)
