"""Whether a task that runs again produces the same rows."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

__all__ = ["JOIN_NAME", "is_repeatable"]

JOIN_NAME = "semistream_join"
"""Name of a join's function in plans. It is declared nondeterministic to Spark, although it is deterministic."""


def is_repeatable(stream: DataFrame) -> bool:
    """Return whether a stream's plan is deterministic as far as Spark knows: no ``rand``, no nondeterministic UDF."""
    return _plan_is(stream._jdf.queryExecution().analyzed())


def _plan_is(plan: Any) -> bool:
    if plan.deterministic():
        return True
    # observed metrics are reported, but are not part of any row
    own = plan.getClass().getSimpleName() == "CollectMetrics" or all(map(_is, _items(plan.expressions())))
    return own and all(map(_plan_is, _items(plan.children())))


def _is(expression: Any) -> bool:
    if expression.deterministic():
        return True
    inside = _items(expression.children())
    if not all(map(_is, inside)):
        return False
    kind = expression.getClass().getSimpleName()
    if kind == "PythonUDF":
        return bool(expression.name() == JOIN_NAME)
    # A partition id is the same whenever the task runs. Any other expression is nondeterministic by itself only if all
    # of its children are deterministic; the children were checked above.
    return kind == "SparkPartitionID" or any(not one.deterministic() for one in inside)


def _items(found: Any) -> list[Any]:
    return [found.apply(at) for at in range(found.size())]
