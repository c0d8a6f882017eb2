"""Which pipeline a checkpoint belongs to, and which checkpoint a directory of Spark's file sink belongs to.

Spark checks neither. With the checkpoint of another pipeline, Spark assumes that all rows were read, and ends
successfully without any. With a new checkpoint and an old sink, Spark reads all rows, and the sink drops them because
its log already has batches of these numbers. So we record the pipeline in the checkpoint, and the checkpoint in the
sink.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from semistream.core.paths import is_address
from semistream.relation.databases import DatabaseAddress
from semistream.relation.storage import files
from semistream.spark.pipeline.document import Document
from semistream.spark.pipeline.plan import PipelinePlan, SinkPlan, SourcePlan

__all__ = ["PINS", "bind", "check_binding"]

PINS = "_semistream/pins"
"""Directory below a checkpoint for the pins of relations whose own directory cannot be written."""

_NOTE = "_semistream/pipeline.json"
_OWNER = "_semistream_checkpoint.json"
_SPARK_LOG = "_spark_metadata"


def check_binding(plan: PipelinePlan, document: Document, *, adopt: bool = False) -> None:
    """Record an error if the checkpoint or the sink belongs to another pipeline.

    With ``adopt`` a checkpoint of another pipeline is accepted. A sink is not, because rows would be lost.
    """
    if plan.checkpoint is None:
        return
    last = _last(plan.checkpoint / "offsets")
    note = _read(plan.checkpoint / _NOTE)
    if last is not None and not adopt:
        problem = _foreign(plan, note)
        if problem is not None:
            document.note(("checkpoint",), problem)
    if plan.sink is not None and plan.dead_letters is None and plan.sink.format == "parquet":
        problem = _sink_problem(plan.checkpoint, plan.sink, last, note)
        if problem is not None:
            document.note((*plan.sink.place, "path"), problem)


def bind(plan: PipelinePlan) -> None:
    """Record in the checkpoint, and in Spark's own file sink, that they belong to this pipeline."""
    assert plan.checkpoint is not None
    file = plan.checkpoint / _NOTE
    note = _read(file) or {}
    name = note.get("id") or uuid.uuid4().hex
    _write(file, {"id": name, "pipeline": _identity(plan)})
    if plan.sink is not None and plan.sink.format == "parquet" and plan.dead_letters is None:
        assert plan.sink.path is not None
        if not is_address(plan.sink.path):
            _write(Path(plan.sink.path) / _OWNER, {"id": name, "checkpoint": str(plan.checkpoint)})


def _foreign(plan: PipelinePlan, note: dict[str, Any] | None) -> str | None:
    """Return why a used checkpoint does not belong to this pipeline; None if it does."""
    if note is None:
        return (
            f"{plan.checkpoint} was used before, and not by a pipeline file: rows that it marks as read would never "
            "arrive. Give a new directory; or, if it does belong to this pipeline, run it once with --adopt"
        )
    before, now = note["pipeline"], _identity(plan)
    changed = [
        f"{key} was {_said(before.get(key))}, and is {_said(now[key])}" for key in now if before.get(key) != now[key]
    ]
    if not changed:
        return None
    return (
        f"{plan.checkpoint} is the checkpoint of another pipeline: {'; '.join(changed)}. Rows that it has read would "
        "never arrive here. Give a new directory; or, if this is the same pipeline and must continue from there, run "
        "it once with --adopt"
    )


def _sink_problem(checkpoint: Path, sink: SinkPlan, last: int | None, note: dict[str, Any] | None) -> str | None:
    """Return why Spark would skip rows for this sink; None if it would not."""
    assert sink.path is not None
    if is_address(sink.path):
        return None
    folder = Path(sink.path)
    written = _last(folder / _SPARK_LOG)
    if written is None:
        if (folder / "_semistream").is_dir():
            return (
                f"{folder} was written by a pipeline with dead letters. This pipeline uses Spark's own sink, which "
                "would hide those files from Spark; give another path"
            )
        return None
    owner = _read(folder / _OWNER)
    foreign = owner is not None and owner.get("id") != (note or {}).get("id")
    if foreign or last is None or last < written:
        theirs = f" (that is {owner['checkpoint']})" if owner is not None else ""
        return (
            f"{folder} has micro-batches up to {written} from another checkpoint than {checkpoint}, and Spark would "
            f"drop rows of batches with the same numbers. Give the checkpoint that it was written with{theirs}, or "
            "another path; to start over, remove this directory and the checkpoint"
        )
    return None


def _identity(plan: PipelinePlan) -> dict[str, Any]:
    """Return the identity of a pipeline: its source, its relations, and its sinks."""
    return {
        "source": _source(plan.source),
        "relations": [str(join.relation) for join in plan.joins],
        "sink": _sink(plan.sink),
        "dead_letters": _sink(plan.dead_letters),
    }


def _source(plan: SourcePlan | None) -> str | None:
    if plan is None:
        return None
    place = plan.path or plan.options.get("subscribe") or ""
    return f"{plan.format} {place}".strip()


def _sink(plan: SinkPlan | None) -> str | None:
    if plan is None:
        return None
    if plan.url is None:
        place = plan.path or plan.options.get("topic") or ""
        return f"{plan.source or plan.format} {place}".strip()
    address = DatabaseAddress.parse(plan.url, plan.password)
    return f"{plan.format} {address.host}:{address.port}/{address.database} {plan.table}"


def _said(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return str(value or "none")


def _last(log: Path) -> int | None:
    """Return the last batch in one of Spark's logs. About every tenth file of a sink's log is a compacted one."""
    names = (file.name.removesuffix(".compact") for file in log.glob("[0-9]*"))
    return max((int(name) for name in names if name.isdecimal()), default=None)


def _read(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _write(file: Path, content: dict[str, Any]) -> None:
    if _read(file) == content:
        return
    files.make_directory(file.parent)
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    files.write_file(temporary, json.dumps(content, indent=1).encode())
    files.rename(temporary, file)
    files.sync_directory(file.parent)
