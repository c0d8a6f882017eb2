"""Workloads that only measurements need. `semistream.workloads` has the workloads that the product needs too.

========================  ============================================================================
keys of a stream          `LocalityKeys`, `ShiftingKeys`
tables as Arrow batches   `WeatherReports`, `TpchTable`
both sides of a join      `Workload`, and the papers' own in `semistream_lab.workloads.workload`
========================  ============================================================================
"""

from semistream_lab.workloads.locality import LocalityKeys
from semistream_lab.workloads.shifting import ShiftingKeys
from semistream_lab.workloads.tpch import TpchTable
from semistream_lab.workloads.weather import WeatherReports
from semistream_lab.workloads.workload import Workload

__all__ = ["LocalityKeys", "ShiftingKeys", "TpchTable", "WeatherReports", "Workload"]
