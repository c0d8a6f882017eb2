"""Relations that follow a table while ``semistream run`` runs a pipeline."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from semistream.cli.console import out
from semistream.cli.relations.follow import step_line

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from semistream.relation.followed.follower import Lag, Step
    from semistream.spark.monitoring.listening import BatchReport
    from semistream.spark.pipeline.follow_reading import FollowPlan
    from semistream.spark.pipeline.plan import PipelinePlan

__all__ = ["following"]


@contextlib.contextmanager
def following(plan: PipelinePlan, query: StreamingQuery, reports: Sequence[BatchReport]) -> Iterator[None]:
    """Follow all tables of a pipeline in the background. If one cannot be followed, the query stops with that error.

    A query that joined with R as it was long ago would look healthy, and its rows would be wrong.
    """
    from semistream.relation.followed.follow import FollowThread
    from semistream.spark.pipeline.plan import AVAILABLE_NOW

    failures: list[BaseException] = []

    def failed(error: BaseException) -> None:
        failures.append(error)
        query.stop()

    def thread(one: FollowPlan) -> FollowThread:
        def report(step: Step) -> None:
            out.print(f"{escape(one.relation.name)}: {step_line(step)}", soft_wrap=True)

        def lagging(lag: Lag) -> None:
            for page in reports:
                page.follow(str(one.relation), lag)

        return FollowThread(one.follower, one.every, failed=failed, report=report, lagging=lagging)

    # A pipeline that ends by itself reads the versions that `load` has just made.
    threads = [] if plan.trigger == AVAILABLE_NOW else [thread(one) for one in plan.follows]
    for one in threads:
        one.start()
    try:
        yield
    finally:
        for one in threads:
            one.close()
    if failures:
        raise failures[0]
