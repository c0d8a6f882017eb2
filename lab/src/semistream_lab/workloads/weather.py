"""Synthetic weather reports with the published shape of a data set that is not available offline.

CMESHJOIN and SSIJ (§VI) join cloud reports of ships and land stations (NDP-026B) on their longitude: 6 M
stream tuples of December with 20 M disk tuples of April and August, 128 bytes each, longitude from 0 to 36000
in hundredths of a degree, with many rows per longitude on both sides. Size, width, key range and months here are
the papers'. The rest is an assumption: most reports come from a few thousand land stations at fixed places, more
of them at the longitudes of Europe, East Asia and the Americas. The others come from ships anywhere. A stream
tuple therefore has hundreds to thousands of matches, and the skew is mild. Measurements on this data do not apply
to the real reports.

Example
-------
>>> december = WeatherReports(rows=1000, months=(12,))
>>> longitudes = december.table()["longitude"].to_numpy()
>>> bool((longitudes >= 0).all() and (longitudes <= 36000).all())
True
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.workloads.keys.draws import fractions, integers, sequence_seed
from semistream.workloads.made_columns import filler_bytes
from semistream.workloads.table_source import BATCH_ROWS, TableSource, batch_ranges, check_batch_rows

__all__ = ["LONGITUDES", "WeatherReports"]

LONGITUDES = 36_001
"""Longitudes are 0 … 36000, both ends included, as in SSIJ."""

_LATITUDES = 18_001
_NO_STATION = -1
_FIXED_BYTES = 8 + 4 + 4 + 8 + 4 + 4
_YEAR = 1991
_REPORT_SECONDS = 3 * 3600
# Clusters of land stations: centre and half width in hundredths of a degree, and tenths of all stations.
_CLUSTERS = ((2_000, 3_500, 4), (11_500, 3_500, 2), (26_500, 4_000, 2))


@dataclass(frozen=True, slots=True)
class WeatherReports(TableSource):
    """Reports of some months, in no particular order.

    Parameters
    ----------
    rows
        Number of reports: 6 M in the stream and 20 M on disk in the papers.
    months
        Months of the reports: (12,) in the stream, (4, 8) on disk. Tables of different months are different
        reports of the same stations.
    row_bytes
        Bytes per report. Filler is added to the values up to this size.
    stations, land_share
        Number of land stations, and their share of the reports. Fewer stations concentrate the reports on
        fewer longitudes.
    """

    rows: int
    months: tuple[int, ...] = (4, 8)
    row_bytes: int = 128
    stations: int = 7_000
    land_share: float = 0.9
    batch_rows: int = BATCH_ROWS
    seed: int = 0

    def __post_init__(self) -> None:
        check_batch_rows(self.batch_rows)
        if self.rows < 0 or self.stations < 1:
            raise ValueError(f"rows must be at least 0 and stations at least 1, not {self.rows} and {self.stations}")
        if not self.months or not all(1 <= month <= 12 for month in self.months):
            raise ValueError(f"months must be some of 1 to 12, not {self.months}")
        if self.row_bytes <= _FIXED_BYTES:
            raise ValueError(f"row_bytes must be more than {_FIXED_BYTES}, not {self.row_bytes}")
        if not 0 <= self.land_share <= 1:
            raise ValueError(f"land_share must be from 0 to 1, not {self.land_share}")

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([
            pa.field("report_id", pa.int64()),
            pa.field("longitude", pa.int32()),
            pa.field("latitude", pa.int32()),
            pa.field("observed", pa.timestamp("s")),
            pa.field("station", pa.int32()),
            pa.field("land", pa.int8()),
            pa.field("present_weather", pa.int8()),
            pa.field("total_cover", pa.int8()),
            pa.field("low_cover", pa.int8()),
            pa.field("filler", pa.binary(self.row_bytes - _FIXED_BYTES)),
        ])  # fmt: skip

    @property
    def row_count(self) -> int:
        return self.rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        for start, count in batch_ranges(self.rows, self.batch_rows):
            yield self.batch(start, count)

    def batch(self, start: int, count: int) -> pa.RecordBatch:
        """Return the reports ``start`` … ``start + count - 1``."""
        if start < 0 or count < 0 or start + count > self.rows:
            raise ValueError(f"rows {start} to {start + count} are not in a table of {self.rows} rows")

        def draw(purpose: str, below: int) -> NDArray[np.int64]:
            return integers(self._seed(purpose), start, count, below=below)

        land = fractions(self._seed("land"), start, count) < self.land_share
        station = draw("station", self.stations)
        places = self._station_places()
        longitude = np.where(land, places[0][station], draw("ship longitude", LONGITUDES))
        latitude = np.where(land, places[1][station], draw("ship latitude", _LATITUDES)) - _LATITUDES // 2
        total_cover = draw("total cover", 9)
        low_cover = draw("low cover", 9) * total_cover // 8  # never more than the total
        rows = np.arange(start, start + count, dtype=np.int64)
        columns = [
            rows,
            longitude.astype(np.int32),
            latitude.astype(np.int32),
            self._observed(draw("month", len(self.months)), fractions(self._seed("time"), start, count)),
            np.where(land, station, _NO_STATION).astype(np.int32),
            land.astype(np.int8),
            draw("present weather", 100).astype(np.int8),
            total_cover.astype(np.int8),
            low_cover.astype(np.int8),
            filler_bytes(int(self._seed("filler")), rows, self.row_bytes - _FIXED_BYTES),
        ]
        return pa.record_batch([pa.array(column) for column in columns], schema=self.schema)

    def _seed(self, purpose: str) -> np.uint64:
        # The seed includes the months: the stream and the relation must not have the same reports.
        return sequence_seed(self.seed, "weather", purpose, *self.months)

    def _station_places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return longitude and latitude of every station. They do not depend on the months."""

        def draw(purpose: str, below: int) -> NDArray[np.int64]:
            return integers(sequence_seed(self.seed, "weather station", purpose), 0, self.stations, below=below)

        longitude = draw("anywhere", LONGITUDES)
        choice = draw("cluster", 10)
        # The sum of two draws has a peak in the middle.
        offset = (draw("east", 10_001) + draw("west", 10_001) - 10_000) / 10_000
        taken = 0
        for centre, half_width, tenths in _CLUSTERS:
            chosen = (choice >= taken) & (choice < taken + tenths)
            clustered = np.rint(centre + offset * half_width).astype(np.int64) % LONGITUDES
            longitude = np.where(chosen, clustered, longitude)
            taken += tenths
        return longitude, draw("latitude", _LATITUDES)

    def _observed(self, month: NDArray[np.int64], part: NDArray[np.float64]) -> NDArray[np.datetime64]:
        """Return observation times, every third hour of the month. ``part`` is the elapsed share of the month."""
        first = np.array([f"{_YEAR}-{number:02d}" for number in self.months], dtype="datetime64[M]")
        begins = first.astype("datetime64[s]").astype(np.int64)
        reports = ((first + 1).astype("datetime64[s]").astype(np.int64) - begins) // _REPORT_SECONDS
        seconds = begins[month] + (part * reports[month]).astype(np.int64) * _REPORT_SECONDS
        return seconds.astype("datetime64[s]")
