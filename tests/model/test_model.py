"""The machine of `machine.py`, driven by Hypothesis and from seeds, some thousands of operations."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from model import episodes
from model.machine import OPERATIONS, Machine
from warming import warm_up

pytestmark = pytest.mark.slow
EPISODES = 6
STEPS = 250


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    warm_up()


class Driven(RuleBasedStateMachine):
    """Any operation at any time; one that cannot be done now does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine()
        for name, seed in (("build", 1), ("open_handle", 2), ("open_join", 3)):
            self.machine.run(name, seed)

    def teardown(self) -> None:
        try:
            self.machine.finish()
        finally:
            self.machine.close()


def _rule(name: str) -> object:
    def operate(self: Driven, seed: int) -> None:
        self.machine.run(name, seed)

    operate.__name__ = name
    return rule(seed=st.integers(0, 2**31 - 1))(operate)


for _name in OPERATIONS:
    setattr(Driven, _name, _rule(_name))

TestDriven = Driven.TestCase
TestDriven.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.sampled
@pytest.mark.parametrize("first", range(0, 24, EPISODES))
def test_episodes_from_seeds(first: int) -> None:
    """In a child process: a crash is a failure with a trace, not the end of the tests."""
    traces = [episodes.episode(seed, STEPS) for seed in range(first, first + EPISODES)]
    failure = episodes.in_child(traces, 300.0)
    if failure is not None:
        pytest.fail(f"{failure.message}\nmade small:\n{episodes.smallest(failure, 60.0)}", pytrace=False)


def test_a_trace_can_be_written_down_and_made_small() -> None:
    """What fails is cut down to what is needed for it, and can be read again."""
    trace = episodes.episode(5, 30)
    assert episodes.read(episodes.written(trace)) == trace
    failure = episodes.in_child([[*trace[:6], ("no_such_operation", 1), *trace[6:]]])
    assert failure is not None
    assert episodes.smallest(failure).trace == [("no_such_operation", 1)]


FOUND = [
    # A read fails as an update comes to SSIJ, which then refuses it for its results: the next turn reads again.
    "build 453100201, open_handle 199806677, open_join 1573860938, feed 474982706, faulty_apply 710317299",
    # Two places of an arena of versions cover the same time, and not the one that was marked gets the tuple.
    "build 1526461237, open_handle 1212899794, open_join 516143676, offer 2146027379, drain 143821431, feed 1653147703",
]
"""What longer runs have found, made small."""


@pytest.mark.parametrize("trace", FOUND)
def test_what_was_found_stays_mended(trace: str) -> None:
    episodes.play(episodes.read(trace))
