from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

from semistream_lab.workloads import WeatherReports
from semistream_lab.workloads.weather import LONGITUDES


def test_reports_have_the_published_shape() -> None:
    reports = WeatherReports(rows=200_000)
    assert sum(field.type.byte_width for field in reports.schema) == 128
    table = reports.table()
    assert table.schema == reports.schema
    assert table.num_rows == reports.row_count == 200_000
    longitude, latitude = table["longitude"].to_numpy(), table["latitude"].to_numpy()
    assert longitude.min() >= 0
    assert longitude.max() <= 36_000
    assert abs(latitude).max() <= 9_000
    assert (table["low_cover"].to_numpy() <= table["total_cover"].to_numpy()).all()


def test_ships_reach_both_ends_of_the_key_range() -> None:
    longitude = WeatherReports(rows=500_000, land_share=0.0).table()["longitude"].to_numpy()
    assert longitude.min() == 0
    assert longitude.max() == LONGITUDES - 1
    assert (np.bincount(longitude, minlength=LONGITUDES) > 0).mean() > 0.999


def test_months_are_the_months_asked_for() -> None:
    observed = WeatherReports(rows=5_000, months=(4, 8)).table()["observed"].to_numpy()
    months = observed.astype("datetime64[M]").astype(int) % 12 + 1
    assert set(months.tolist()) == {4, 8}
    assert np.mean(months == 4) == pytest.approx(0.5, abs=0.05)
    assert set((observed.astype(np.int64) % (3 * 3600)).tolist()) == {0}


def test_stations_keep_their_place_from_month_to_month() -> None:
    places = {}
    for months in ((12,), (4, 8)):
        table = WeatherReports(rows=50_000, months=months, stations=100, seed=3).table()
        land = table.filter(pa.compute.equal(table["land"], 1))
        for station, longitude in zip(land["station"].to_pylist(), land["longitude"].to_pylist(), strict=True):
            assert places.setdefault(station, longitude) == longitude
    assert sorted(places) == list(range(100))


def test_it_is_many_to_many() -> None:
    stream = WeatherReports(rows=60_000, months=(12,)).table()["longitude"].to_numpy()
    master = WeatherReports(rows=200_000, months=(4, 8)).table()["longitude"].to_numpy()
    matches = np.bincount(master, minlength=LONGITUDES)[stream]
    assert np.mean(matches > 1) > 0.9
    assert np.bincount(stream).max() > 10


def test_the_stream_is_not_a_part_of_the_relation() -> None:
    stream, master = (WeatherReports(rows=5_000, months=months).table() for months in ((12,), (4, 8)))
    assert not set(stream["filler"].to_pylist()) & set(master["filler"].to_pylist())
    same = np.mean(stream["longitude"].to_numpy() == master["longitude"].to_numpy())
    assert same < 0.01


def test_any_stretch_can_be_made_alone() -> None:
    reports = WeatherReports(rows=1000, batch_rows=300, seed=2)
    table = reports.table().combine_chunks()
    assert pa.table(reports.batch(250, 100)).equals(table.slice(250, 100).combine_chunks())
    assert pickle.loads(pickle.dumps(reports)).table().combine_chunks().equals(table)
    with pytest.raises(ValueError, match="not in a table of 1000 rows"):
        reports.batch(990, 11)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": -1},
        {"rows": 1, "months": ()},
        {"rows": 1, "months": (13,)},
        {"rows": 1, "row_bytes": 32},
        {"rows": 1, "stations": 0},
        {"rows": 1, "land_share": 1.5},
        {"rows": 1, "batch_rows": 0},
    ],
)
def test_bad_reports_are_refused(wrong) -> None:
    with pytest.raises(ValueError, match="must"):
        WeatherReports(**wrong)
