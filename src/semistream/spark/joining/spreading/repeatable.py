"""Whether rows of a stream are the same when a task that made them runs again."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

__all__ = ["JOIN_NAME", "is_repeatable"]

JOIN_NAME = "semistream_join"
"""What a join's own function is called in plans: Spark is told that it is not deterministic, and yet it is."""


def is_repeatable(stream: DataFrame) -> bool:
    """Return whether nothing in a stream's plan is up to chance, as far as Spark knows: no ``rand``, no such UDF."""
    return _plan_is(stream._jdf.queryExecution().analyzed())


def _plan_is(plan: Any) -> bool:
    if plan.deterministic():
        return True
    # what is observed is told, and is in no row
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
    # of a task, whichever time it runs; else what is in it is what makes it so
    return kind == "SparkPartitionID" or any(not one.deterministic() for one in inside)


def _items(found: Any) -> list[Any]:
    return [found.apply(at) for at in range(found.size())]
