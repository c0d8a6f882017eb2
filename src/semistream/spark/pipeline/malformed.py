"""The setting ``on_malformed`` of a pipeline file: what to do with rows that do not fit the schema."""

from __future__ import annotations

from typing import cast

from semistream.spark.pipeline.document import Section
from semistream.spark.pipeline.plan import OnMalformed

__all__ = ["on_malformed"]

_WAYS = ("fail", "dead_letter", "drop", "null")
_MODES = {"permissive": "null", "dropmalformed": "drop", "failfast": "fail"}


def on_malformed(section: Section, kind: str, schema: str, options: dict[str, str]) -> OnMalformed:
    """Return what to do with malformed rows. Spark's option ``mode`` means the same and is removed from ``options``.

    A message in Kafka cannot be corrected, and one bad message would stop the query forever. So malformed messages are
    kept by default, and counted. They are also kept if the schema has a column for their text.
    """
    mode = next((name for name in options if name.lower() == "mode"), None)
    own = "_corrupt_record" in schema or "columnnameofcorruptrecord" in map(str.lower, options)
    default = "null" if kind == "kafka" or own else "fail"
    if mode is not None:
        said = options.pop(mode)
        if "on_malformed" in section:
            section.note(f"on_malformed and Spark's option {mode} mean the same; leave out {mode}", "options")
        elif said.lower() not in _MODES:
            section.note(f"{mode} is {said!r}; leave it out and give on_malformed", "options")
        default = _MODES.get(said.lower(), default)
    return cast("OnMalformed", section.choice("on_malformed", _WAYS, default) or default)
