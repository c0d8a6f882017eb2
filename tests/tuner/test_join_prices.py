"""What joins cost the processor as a whole: kept with the constants, used by models of real devices and no others."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from semistream.costs import Setting, costs_of, load_constants, save_constants
from semistream.costs.basis.constants import MEASURED, ConstantsError
from semistream.relation.devices.device import DeviceProfile
from semistream.relation.relation import Relation
from semistream.relation.synthetic import synthetic_relation
from semistream.tuner import join_prices
from semistream.tuner.join_prices import measure_joins
from semistream.tuner.tuning import describe

ROWS = 60_000


@pytest.fixture(scope="module")
def relation(tmp_path_factory):
    table = pa.table({"id": np.arange(ROWS), "name": pa.array([b"x" * 60] * ROWS, pa.binary(60))})
    with Relation.build(table, tmp_path_factory.mktemp("prices") / "r", key="id") as built:
        yield built


@pytest.fixture(autouse=True)
def no_constants_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("SEMISTREAM_DATA", str(tmp_path))


@pytest.mark.long
def test_a_join_is_priced_at_what_it_took(relation, monkeypatch):
    """A clock that ticks when it is asked, once for each batch: the models then give what a tuple took by it."""
    ticks = itertools.count(0.0, 0.2)
    monkeypatch.setattr(join_prices, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    keys = np.random.default_rng(1).integers(0, ROWS, 40_000)
    stream = [pa.record_batch({"id": keys[at : at + 10_000]}) for at in range(0, 40_000, 10_000)]
    disk = DeviceProfile(1e-5, 1e-6, random_reads_per_second=1e5, sequential_bytes_per_second=8e9, depth=4, direct=True)
    constants = load_constants("disk-2010").on(disk, relation.page_bytes)
    found = measure_joins(relation, stream, constants, ("inlj", "adaptivejoin"), seconds=1.2)
    assert [name for name, _ in found] == ["adaptivejoin", "inlj"]
    setting = Setting.of(relation, stream[0].schema, exponent=1.0, shape="random", constants=constants)
    priced = setting.replace(constants=dataclasses.replace(constants, processor=found))
    for name, _ in found:
        assert costs_of(name).predict(priced, relation.nbytes // 10).seconds == pytest.approx(2e-5, rel=0.1)


def test_models_of_real_devices_have_measured_prices_and_simulated_ones_do_not(relation):
    real, simulated = describe(relation, None).constants, describe(synthetic_relation(ROWS), None).constants
    assert real.name == MEASURED
    assert {name for name, _ in real.processor} == set(join_prices.priced())
    assert real.factor("op_cachejoin") > 2, "most of its time is beside what its operations are priced at"
    assert (simulated.name, simulated.processor) == ("disk-2010", ())
    assert simulated.factor("op_cachejoin") == 1.0


def test_a_factor_is_of_the_processor_alone(relation):
    setting = describe(relation, None)
    dear = dataclasses.replace(setting.constants, processor=(("inlj", 3.0),))
    plain = dataclasses.replace(setting.constants, processor=())
    one, three = (
        costs_of("inlj").predict(setting.replace(constants=constants), 1 << 20) for constants in (plain, dear)
    )
    assert three.seconds - three.io_seconds == pytest.approx(3 * (one.seconds - one.io_seconds))


def test_a_join_that_was_not_measured_is_priced_as_the_dearest_that_was(relation):
    setting, model = describe(relation, None), costs_of("cachejoin")

    def predicted(*processor):
        constants = dataclasses.replace(setting.constants, processor=processor)
        return model.predict(setting.replace(constants=constants), 1 << 20)

    inlj, ssij = ("inlj", 3.0), ("ssij", 2.0)
    assert predicted(inlj, ssij) == predicted(inlj, ssij, ("cachejoin", 3.0)) != predicted()
    assert predicted(inlj, ssij, ("cachejoin", 1.0)) == predicted()


def test_they_are_kept_with_the_constants():
    constants = dataclasses.replace(load_constants("disk-2010"), name="mine", processor=(("inlj", 3.5), ("ssij", 2.0)))
    save_constants(constants)
    assert load_constants("mine") == constants
    with pytest.raises(ConstantsError, match="processor inlj"):
        dataclasses.replace(constants, processor=(("inlj", -1.0),))
