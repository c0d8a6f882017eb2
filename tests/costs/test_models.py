"""Cost models: the memory they give to a join's parts is what the join takes, and their rates are possible."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from semistream.costs import Constants, Setting, costs_of, load_constants, modelled, save_constants
from semistream.costs.basis.constants import ConstantsError
from semistream.costs.basis.popularity import key_classes
from semistream.joins import algorithms, create, find
from semistream.relation.synthetic import synthetic_relation
from semistream.tuner import best_split

ROWS = 200_000
SCHEMA = pa.schema({"id": pa.int64(), "number": pa.int64(), "filler": pa.binary(4)})
DISK = load_constants("disk-2010")


def test_every_join_within_a_budget_has_a_model():
    assert set(modelled()) == {name for name in algorithms() if find(name).bounded}


def test_no_more_tuples_enter_in_a_turn_than_there_is_room_for():
    """Nearly all are answered by pinned pages: what these leave waits for a read, and the rest of the table turns."""
    setting = Setting.planned(500_000, exponent=1.0, shape="noperm", constants=DISK)
    found = (
        costs_of("x_hybridjoin")
        .predict(
            setting,
            41_000_000,
            partition_pages=512,
            pinned_pages=2636,
            in_flight=1,
            by_frequency=True,
            scan_pinned=True,
        )
        .details
    )
    assert found["p_N"] > 0.9
    assert 0.5 * found["h_S"] < found["w"] / (1.0 - found["p_N"]) < found["h_S"]


def test_no_more_tuples_are_served_in_a_turn_than_a_small_buffer_lets_enter():
    setting = Setting.planned(2_000_000, exponent=1.0, shape="noperm", constants=DISK)
    found = costs_of("p_cachejoin").predict(
        setting, 65_000_000, cache_share=0.5, buffer_share=4096 / 65e6, partition_pages=13, in_flight=1
    )
    assert found.details["turn"] <= 1.01 * found.parts["intermediate buffer"] / setting.buffered_bytes


@pytest.mark.parametrize("share", [0.02, 0.1])
@pytest.mark.parametrize("algorithm", modelled())
def test_model_splits_memory_as_the_join_does(algorithm, share):
    relation = synthetic_relation(ROWS)
    memory = int(relation.nbytes * share)
    join = create(algorithm, relation, on="id", how="inner", memory=memory, schema=SCHEMA)
    expected = costs_of(algorithm).memory(Setting.of(relation, SCHEMA, constants=DISK), memory)
    found = {name: size for name, size in join.budget.parts().items() if size}
    assert sum(expected.values()) <= memory
    for name in expected.keys() | found.keys():
        assert expected.get(name, 0) == pytest.approx(found.get(name, 0), rel=0.01, abs=1024), (name, expected, found)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", modelled())
def test_join_takes_the_options_that_the_tuner_names(algorithm):
    relation = synthetic_relation(20_000)
    setting = Setting.of(relation, SCHEMA, constants=DISK)
    memory = relation.nbytes // 5
    found = best_split(costs_of(algorithm), setting, memory)
    join = create(algorithm, relation, on="id", memory=memory, schema=SCHEMA, **found.options)
    assert join.budget.used <= memory
    assert found.rate > 0


def test_long_runs_of_ssij_take_the_memory_of_pages_and_tuples():
    """The read buffer holds a run: the longest are paid for by what can wait and be cached."""
    relation = synthetic_relation(500_000)
    setting = Setting.of(relation, SCHEMA, constants=DISK.on(relation.device.measure(), relation.page_bytes))
    memory = relation.nbytes // 10
    found = {}
    for pages in (None, 50, 200, 3200):
        options = {} if pages is None else {"max_scan": pages}
        join = create("ssij", relation, on="id", memory=memory, schema=SCHEMA, **options)
        predicted = costs_of("ssij").predict(setting, memory, **options)
        found[pages] = predicted.rate
        assert predicted.parts["read buffer"] == join.budget.parts()["read buffer"]
        assert predicted.options["max_scan"] == pages
    assert found[50] < found[200] > 1.2 * found[3200]
    assert found[200] > found[None]


def test_nothing_waits_where_all_of_r_is_pinned():
    # the queue of the model never fills there: playing it once went on for ever
    relation = synthetic_relation(2_000)
    setting = Setting.of(relation, SCHEMA, constants=DISK)
    options = {"pinned_pages": setting.pages, "partition_pages": 1}
    found = costs_of("x_hybridjoin").predict(setting, 4 * relation.nbytes, **options)
    assert 0 < found.rate < float("inf")
    assert found.hit_ratio == pytest.approx(1.0, abs=1e-6)


def test_pages_are_about_as_popular_as_each_other_where_keys_lie_anywhere():
    # rounding once made a class of no pages take the whole stream
    setting = Setting.planned(50_000, 16, exponent=0.8613625191830014, constants=DISK)
    for cached in range(0, 2_000, 25):
        pages = key_classes(setting).top(cached).units(setting, 1).items().top(0)
        for width in (1.0, 4.0, 16.0):
            units = pages.grouped(width, "random")
            assert units.total(units.popularity) == pytest.approx(1.0)
            assert units.popularity.max() < 1.0


class TestConstants:
    @pytest.fixture(autouse=True)
    def own_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SEMISTREAM_DATA", str(tmp_path))

    def test_are_kept_and_found_by_name(self):
        kept = Constants("mine", 1, 2, 3, 4, 5, 6, 7, 8e-3, 8e-4, 8e-5)
        save_constants(kept, machine={"cores": 2})
        assert load_constants("mine") == kept
        assert load_constants().name == "disk-2010"

    def test_local_ones_are_preferred(self):
        save_constants(Constants("local", 1, 2, 3, 4, 5, 6, 7, 8e-3, 8e-4, 8e-5))
        assert load_constants().name == "local"

    @pytest.mark.parametrize("name", ["../other", "", "a b"])
    def test_names_that_are_none_are_refused(self, name):
        with pytest.raises(ConstantsError, match="cannot be the name"):
            save_constants(Constants(name, 1, 2, 3, 4, 5, 6, 7, 8e-3, 8e-4, 8e-5))

    def test_unknown_ones_name_the_known(self):
        with pytest.raises(ConstantsError, match="known: disk-2010"):
            load_constants("nowhere")

    def test_a_broken_file_says_so(self, tmp_path):
        (tmp_path / "constants").mkdir()
        (tmp_path / "constants" / "local.json").write_text('{"name": "local"}')
        with pytest.raises(ConstantsError, match=r"local\.json does not hold constants"):
            load_constants()
