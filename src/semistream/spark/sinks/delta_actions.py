"""Entries of Delta's log for data files: partition, size, and value bounds, with which readers skip files."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq

from semistream.spark.sinks.parquet_files import PartFile
from semistream.spark.sinks.sink import SinkError

__all__ = ["add_action", "refuse_features"]

_HARMLESS = {
    "appendOnly", "changeDataFeed", "deletionVectors", "domainMetadata", "inCommitTimestamp", "timestampNtz",
    "v2Checkpoint", "vacuumProtocolCheck",
}  # fmt: skip
"""Table features that require nothing of a writer that appends files; `invariants`, `checkConstraints` are checked."""
_LONGEST = 64
"""Maximum characters of a text used as a bound; longer texts are left out."""


def refuse_features(path: str, table: Any) -> None:
    """Raise if a table requires that rows are checked or changed before they are written, which is not done here."""
    protocol, settings = table.protocol(), table.metadata().configuration
    asked = set(protocol.writer_features or ()) - _HARMLESS - {"invariants", "checkConstraints", "columnMapping"}
    asked |= {name for name in settings if name.startswith("delta.constraints.")}
    if settings.get("delta.columnMapping.mode", "none") != "none":
        asked.add("columnMapping")
    fields = json.loads(table.schema().to_json())["fields"]
    asked |= {name for part in fields for name in part.get("metadata", {}) if name.startswith("delta.")}
    if asked:
        raise SinkError(
            f"the Delta table {path} requires of its writers: {', '.join(sorted(asked))}; this sink only appends "
            "files. Write to a table without these features, and insert from there"
        )


def add_action(file: PartFile) -> dict[str, Any]:
    """Return the arguments of an ``AddAction``, ready for JSON."""
    return {
        "path": file.path,
        "size": file.size,
        "partition_values": {name: _partition_text(value) for name, value in file.values.items()},
        "stats": json.dumps(_statistics(file.metadata)),
    }


def _partition_text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime.datetime):
        instant = value if value.tzinfo is None else value.astimezone(datetime.UTC)
        return instant.strftime("%Y-%m-%d %H:%M:%S.%f")
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _statistics(metadata: pq.FileMetaData) -> dict[str, Any]:
    """Return rows, NULL counts and bounds of columns that are not nested; bounds only if JSON holds them exactly."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number in range(metadata.num_columns):
        name = metadata.schema.column(number).path
        groups = [metadata.row_group(group).column(number) for group in range(metadata.num_row_groups)]
        if groups[0].path_in_schema != metadata.schema.column(number).name:
            continue  # inside a list or a struct
        found = [group.statistics for group in groups]
        if any(each is None for each in found):
            continue
        if all(each.has_null_count for each in found):
            nulls[name] = sum(each.null_count for each in found)
        bounded = [each for group, each in zip(groups, found, strict=True) if each.null_count != group.num_values]
        if not bounded or not all(each.has_min_max for each in bounded):
            continue
        low, high = min(each.min for each in bounded), max(each.max for each in bounded)
        if (bounds := _bounds(low, high)) is not None:
            least[name], most[name] = bounds
    return {"numRecords": metadata.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _bounds(low: Any, high: Any) -> tuple[Any, Any] | None:
    if type(low) is int:
        return low, high
    if type(low) is str and len(low) <= _LONGEST and len(high) <= _LONGEST:
        return low, high
    if type(low) is datetime.date:
        return low.isoformat(), high.isoformat()
    return None
