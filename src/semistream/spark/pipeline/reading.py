"""Read a pipeline file, and check everything that can be checked without Spark.

``docs/pipeline.md`` describes every key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from semistream.core.errors import SemistreamError, UnknownAlgorithmError, UnknownIndexError, UnsupportedJoinError
from semistream.core.paths import is_address, local_path
from semistream.core.units import is_share, memory_bytes, parse_bytes
from semistream.joins import AUTO, How, find
from semistream.joins.interface.conditions import ConditionName
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.manifest import Manifest
from semistream.relation.stores.store_path import StorePath, place_of
from semistream.spark.joining.missing import After, OnMissing, missing_rule
from semistream.spark.pipeline.document import Document, Place, Section
from semistream.spark.pipeline.follow_reading import read_follows
from semistream.spark.pipeline.foreseen import check_joins
from semistream.spark.pipeline.malformed import on_malformed
from semistream.spark.pipeline.plan import (
    AVAILABLE_NOW,
    FILES,
    ONCE,
    SINKS,
    SOURCES,
    TEXTS,
    DeduplicatePlan,
    JoinPlan,
    PipelinePlan,
    SinkPlan,
    SourcePlan,
    StatisticsPlan,
    Trigger,
    with_budgets,
)
from semistream.spark.pipeline.sink_reading import read_sink

__all__ = ["read_plan"]

_INTERVAL = re.compile(r"(\d+ +(millisecond|second|minute|hour|day)s? *)+", re.IGNORECASE)


def read_plan(document: Document) -> PipelinePlan:
    """Read a file. All errors are in ``document.problems`` afterwards."""
    return _Reader(document).plan()


def _read_trigger(given: object) -> str:
    text = str(given)
    if text != AVAILABLE_NOW and not _INTERVAL.fullmatch(text):
        raise ValueError(f"{text!r} is not a trigger; write an interval such as '10 seconds', or {AVAILABLE_NOW!r}")
    return text


class _Reader:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.root = document.root

    def plan(self) -> PipelinePlan:
        root = self.root
        name = root.text("name", self.document.path.stem)
        checkpoint = self._path(root, "checkpoint", required=True)
        trigger = root.read("trigger", _read_trigger)
        memory = root.read("memory", parse_bytes)
        source = self._source()
        deduplicate = self._deduplicate()
        joins = self._joins(memory)
        derive = self._expressions(root, "derive")
        conditions = self._filter()
        sink = read_sink(self.document, "sink", SINKS, self._address)
        dead_letters = self._dead_letters(source, joins, sink)
        self._check_trigger(joins, trigger)
        self._check_apart(source, {"checkpoint": checkpoint, "sink": sink, "dead_letters": dead_letters})
        if source is not None and len(joins) == len(root.sections("join")):
            check_joins(source, joins, self.document)
        statistics = self._statistics()
        master, heap, settings = self._spark()
        follows = read_follows(self.document)
        root.finish()
        return PipelinePlan(
            name or "pipeline", checkpoint, trigger, source, deduplicate, joins, derive, sink, dead_letters,
            statistics, settings, master, heap, conditions, follows,
        )  # fmt: skip

    def _check_apart(self, source: SourcePlan | None, others: Mapping[str, SinkPlan | Path | None]) -> None:
        """Record an error if output would be written into the stream's directory and read again as its rows."""
        if source is None or source.path is None:
            return
        for name, other in others.items():
            path = other.path if isinstance(other, SinkPlan) else other
            if path is not None and f"{path}/".startswith(f"{source.path.rstrip('/')}/"):
                place = (name, "path") if isinstance(other, SinkPlan) else (name,)
                self.document.note(
                    place, f"{path} is in the stream's own directory, and would be read as its rows; give another path"
                )

    def _path(self, section: Section, name: str, *, required: bool = False) -> Path | None:
        """Return a path, relative to the file's directory."""
        text = section.text(name, required=required)
        try:
            return None if text is None else (self.document.path.parent / local_path(text, name)).absolute()
        except SemistreamError as error:
            section.note(str(error), name)
            return None

    def _relation(self, section: Section) -> Path | StorePath | None:
        """Return the location of a relation: a path relative to the file's directory, or an address in a store."""
        text = section.text("relation", required=True)
        try:
            place = None if text is None else place_of(text)
        except SemistreamError as error:
            section.note(str(error), "relation")
            return None
        return (self.document.path.parent / place).absolute() if isinstance(place, Path) else place

    def _address(self, section: Section) -> str | None:
        """Return a path, or the unchanged address of an object store, which Spark and Delta can read."""
        text = section.text("path", required=True)
        return text if text is None or is_address(text) else str(self._path(section, "path"))

    def _source(self) -> SourcePlan | None:
        section = self.root.section("source", required=True)
        if section is None:
            return None
        kind = section.choice("format", SOURCES)
        options: dict[str, str] = {}
        path = None
        if kind in FILES:
            path = self._address(section)
            if (files := section.integer("files_per_batch")) is not None:
                options["maxFilesPerTrigger"] = str(files)
        schema = section.text("schema", required=kind in TEXTS)
        if kind == "kafka":
            options |= self._kafka(section)
        options |= section.options("options")
        derive = self._expressions(section, "derive")
        malformed = on_malformed(section, kind, schema or "", options) if kind in TEXTS else None
        if kind is not None:  # the keys of an unknown kind cannot be checked
            section.finish()
        return None if kind is None else SourcePlan(section.place, kind, path, schema, options, derive, malformed)

    def _kafka(self, section: Section) -> dict[str, str]:
        options = {"startingOffsets": section.choice("start", ("earliest", "latest"), "latest") or "latest"}
        for name, option in (("servers", "kafka.bootstrap.servers"), ("topic", "subscribe")):
            if (found := section.text(name, required=True)) is not None:
                options[option] = found
        if (rows := section.integer("rows_per_batch")) is not None:
            options["maxOffsetsPerTrigger"] = str(rows)
        return options

    def _expressions(self, section: Section, name: str) -> dict[str, str]:
        """Return derived columns: names and SQL expressions, in the order of the file."""
        table = section.section(name)
        if table is None:
            return {}
        found = {key: table.text(key) for key in section.values(name)}
        return {key: text for key, text in found.items() if text is not None}

    def _deduplicate(self) -> DeduplicatePlan | None:
        section = self.root.section("deduplicate")
        if section is None:
            return None
        columns = section.texts("columns", required=True)
        watermark = section.text("watermark", required=True)
        within = section.text("within", required=True)
        section.finish()
        if not columns or watermark is None or within is None:
            return None
        return DeduplicatePlan(section.place, columns, watermark, within)

    def _filter(self) -> dict[str, str]:
        """Return the conditions before and after the joins."""
        if (section := self.root.section("filter")) is None:
            return {}
        found = {name: section.text(name) for name in ("before", "after")}
        if not any(name in section for name in found):
            section.note("[filter] needs before or after: a Spark SQL condition, such as before = 'amount > 0'")
        section.finish()
        return {name: text for name, text in found.items() if text is not None}

    def _joins(self, memory: int | None) -> tuple[JoinPlan, ...]:
        sections = self.root.sections("join")
        sizes: dict[Place, Manifest] = {}
        plans = [self._join(section, sizes) for section in sections]
        found = [plan for plan in plans if plan is not None]
        names = [plan.name for plan in found]
        for plan in found:
            if names.count(plan.name) > 1:
                self.document.note(plan.place, f"two joins are called {plan.name!r}; give each its own name")
        try:
            return tuple(with_budgets(found, memory, sizes))
        except ValueError as error:
            self.root.note(str(error), "memory")
            return tuple(found)

    def _join(self, section: Section, sizes: dict[Place, Manifest]) -> JoinPlan | None:
        path = self._relation(section)
        on, by = section.texts("on", required=True), section.texts("by") or None
        name = section.text("name", path.name if path else "join")
        missing = self._missing(section)
        algorithm, as_of = section.text("algorithm"), section.text("as_of")
        condition = cast("ConditionName", section.choice("condition", ("equal", "between"), "equal"))
        columns = section.texts("columns") if "columns" in section else None
        prefix, suffix = section.text("prefix", ""), section.text("suffix", "_right")
        surrogate = section.text("surrogate")
        unknown = section.read("unknown", lambda given: cast("str | float", given))
        manifest = self._manifest(section, path, by)
        size, rows = (1, 1) if manifest is None else (manifest.nbytes or 1, manifest.rows)

        def memory_of(given: int | float | str) -> int | str:
            found = memory_bytes(given, size, rows)
            return str(given) if is_share(given) else found

        memory = section.read("memory", memory_of)
        options = section.values("options")
        local = section.read("local", lambda given: parse_bytes(given, of=size))
        section.finish()
        try:
            if algorithm is not None and algorithm != AUTO:
                find(algorithm)
        except UnknownAlgorithmError as error:
            section.note(str(error), "algorithm")
        if unknown is not None and surrogate is None:
            section.note("unknown is for rows without a match; name the surrogate column too", "unknown")
        if surrogate is not None and len(on) > 1:
            section.note(f"surrogate replaces a key of one column, not of {len(on)}; leave it out", "surrogate")
        if path is None or not on or manifest is None or missing is None:
            return None
        sizes[section.place] = manifest
        return JoinPlan(
            section.place, name or "join", path, on, *missing, algorithm, condition, as_of, memory, columns,
            prefix or "", suffix or "_right", surrogate, unknown, options, local, by,
        )  # fmt: skip

    def _missing(self, section: Section) -> tuple[How | None, OnMissing | None, str | None, After | None] | None:
        """Return what to do with rows without a match, as arguments of `semistream.join`."""
        on_missing = section.text("on_missing")
        park_for, after_park = section.text("park_for"), section.text("after_park")
        how = section.text("how", None if on_missing else "left")
        found = cast(
            "tuple[How | None, OnMissing | None, str | None, After | None]", (how, on_missing, park_for, after_park)
        )
        try:
            missing_rule(*found)
        except UnsupportedJoinError as error:
            keys = [key for key in ("on_missing", "how", "park_for", "after_park") if key in section]
            section.note(str(error), keys[0])
            return None
        return found

    def _manifest(self, section: Section, path: Path | StorePath | None, by: Sequence[str] | None) -> Manifest | None:
        """Return the manifest of a relation; it can be read without Spark."""
        if path is None:
            return None
        try:
            return manifests.load(path) if by is None else manifests.load(path).in_order_of(by, path)
        except SemistreamError as error:
            section.note(str(error), "by" if isinstance(error, UnknownIndexError) else "relation")
            return None
        except (OSError, ValueError) as error:  # no permission, or no path
            why = error.strerror if isinstance(error, OSError) else None
            section.note(
                f"{path} cannot be opened: {why or error}; give another path, or grant access to it", "relation"
            )
            return None

    def _check_trigger(self, joins: Sequence[JoinPlan], trigger: Trigger) -> None:
        if trigger is None and "trigger" not in self.root:
            for plan in joins:
                if plan.on_missing == "park":
                    self.document.note(
                        (*plan.place, "on_missing"),
                        "parked rows are looked up again at every trigger, even if no rows arrive; give an interval: "
                        "trigger = '10 seconds'",
                    )

    def _dead_letters(
        self, source: SourcePlan | None, joins: Sequence[JoinPlan], sink: SinkPlan | None
    ) -> SinkPlan | None:
        """Return the sink of dead letters. It is required if, and only if, a join or the source has dead letters."""
        used = [plan.place for plan in joins if plan.has_dead_letters]
        if source is not None and source.on_malformed == "dead_letter":
            used.append(source.place)
        if not used:
            if "dead_letters" in self.root and source and len(joins) == len(self.root.sections("join")):
                self.root.note(
                    "no join has dead letters: give one on_missing = 'dead_letter', or [source] on_malformed = "
                    "'dead_letter'",
                    "dead_letters",
                )
            self.root.section("dead_letters")
            return None
        if sink is not None and sink.format not in ONCE:
            self.document.note(
                (*sink.place, "format"),
                f"{sink.format} may get a batch twice, but dead letters need a sink that writes each batch once: "
                f"{', '.join(ONCE)}",
            )
        if sink is not None and sink.options and sink.format in ONCE:
            self.document.note((*sink.place, "options"), "options are for sinks without dead letters; leave them out")
        if "dead_letters" not in self.root:
            self.document.note(used[0], "dead letters need their own sink: a table [dead_letters]")
            return None
        return read_sink(self.document, "dead_letters", ONCE, self._address)

    def _statistics(self) -> StatisticsPlan:
        section = self.root.section("statistics")
        if section is None:
            return StatisticsPlan()
        file, port = self._path(section, "file"), section.integer("port", least=0)
        if port is not None and port > 65_535:
            section.note(f"port must be at most 65535, not {port}", "port")
        missing_keys = section.flag("missing_keys", True)
        section.finish()
        return StatisticsPlan(file, port, missing_keys)

    def _spark(self) -> tuple[str, str, dict[str, str]]:
        section = self.root.section("spark")
        if section is None:
            return "local[*]", "2g", {}
        master, heap = section.text("master", "local[*]"), section.text("heap", "2g")
        settings = section.options("settings")
        section.finish()
        return master or "", heap or "", settings
