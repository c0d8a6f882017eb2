"""All errors that the library raises on purpose, to be caught by name.

Each is a `SemistreamError`; bad arguments are also ``ValueError``. A message says what is wrong with the value, what
the limit is, and what to do.

Examples
--------
>>> import semistream
>>> try:
...     semistream.Relation.open("/nowhere")
... except semistream.errors.NotARelationError as error:
...     print(error)
there is no relation at /nowhere: the path does not exist; build one with Relation.build or spark.build
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from semistream.core import errors as _of_all
from semistream.core.errors import *  # noqa: F403

if TYPE_CHECKING:
    from semistream.costs.basis.constants import ConstantsError as ConstantsError
    from semistream.relation.damage.repair_pages import MixedUpError as MixedUpError
    from semistream.relation.damage.repair_pages import RepairError as RepairError
    from semistream.relation.databases.address import DatabaseError as DatabaseError
    from semistream.relation.delta_table import DeltaReadError as DeltaReadError
    from semistream.relation.devices.device import DeviceError as DeviceError
    from semistream.relation.followed.source_table import ExpiredCommitError as ExpiredCommitError
    from semistream.relation.followed.source_table import FollowError as FollowError
    from semistream.relation.followed.source_table import SourceUnavailableError as SourceUnavailableError
    from semistream.relation.rows.fitting import ColumnsError as ColumnsError
    from semistream.relation.rows.row_cells import RowLimitError as RowLimitError
    from semistream.relation.storage.map_file import MixedUpMapError as MixedUpMapError
    from semistream.relation.stores.object_store import StoreUnavailableError as StoreUnavailableError
    from semistream.spark.java import JavaNotFoundError as JavaNotFoundError
    from semistream.spark.monitoring.prometheus import PortTakenError as PortTakenError
    from semistream.spark.pipeline.csv_tables import CsvError as CsvError
    from semistream.spark.pipeline.document import PipelineError as PipelineError
    from semistream.spark.pipeline.source import SourceError as SourceError
    from semistream.spark.relations.relation_source import RelationOptionError as RelationOptionError
    from semistream.spark.relations.types import UnsupportedTypeError as UnsupportedTypeError
    from semistream.spark.sales_source import SourceOptionError as SourceOptionError
    from semistream.spark.sinks.sink import SinkError as SinkError
    from semistream.tuner.planner import PlanError as PlanError
    from semistream.tuner.skew import SkewError as SkewError

# Errors of one part of the library: loaded with that part, which may need an extra.
_OF_PARTS = {
    "ColumnsError": "relation.rows.fitting",
    "ConstantsError": "costs.basis.constants",
    "CsvError": "spark.pipeline.csv_tables",
    "DatabaseError": "relation.databases.address",
    "DeltaReadError": "relation.delta_table",
    "DeviceError": "relation.devices.device",
    "ExpiredCommitError": "relation.followed.source_table",
    "FollowError": "relation.followed.source_table",
    "JavaNotFoundError": "spark.java",
    "MixedUpError": "relation.damage.repair_pages",
    "MixedUpMapError": "relation.storage.map_file",
    "PipelineError": "spark.pipeline.document",
    "PlanError": "tuner.planner",
    "PortTakenError": "spark.monitoring.prometheus",
    "RelationOptionError": "spark.relations.relation_source",
    "RepairError": "relation.damage.repair_pages",
    "RowLimitError": "relation.rows.row_cells",
    "SinkError": "spark.sinks.sink",
    "SkewError": "tuner.skew",
    "SourceError": "spark.pipeline.source",
    "SourceOptionError": "spark.sales_source",
    "SourceUnavailableError": "relation.followed.source_table",
    "StoreUnavailableError": "relation.stores.object_store",
    "UnsupportedTypeError": "spark.relations.types",
}

__all__ = [*_of_all.__all__, *_OF_PARTS]


def __getattr__(name: str) -> Any:
    if name not in _OF_PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"semistream.{_OF_PARTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
