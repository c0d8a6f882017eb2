"""A pipeline in a file: read, checked and run by ``semistream run``."""

from __future__ import annotations

from semistream.spark.pipeline.assembly import assemble
from semistream.spark.pipeline.document import PipelineError, Problem
from semistream.spark.pipeline.plan import PipelinePlan
from semistream.spark.pipeline.reading import read_plan
from semistream.spark.pipeline.running import load, start

__all__ = ["PipelineError", "PipelinePlan", "Problem", "assemble", "load", "read_plan", "start"]
