"""The memory budget: sums agree at all times, and nothing more than the total is ever given."""

from __future__ import annotations

import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from semistream.core.budget import MemoryBudget, Reservation
from semistream.core.errors import BudgetExceededError, SemistreamError


def test_a_reservation_that_does_not_fit_names_everything() -> None:
    budget = MemoryBudget(10_000)
    budget.reserve("disk buffer", 8192)
    with pytest.raises(BudgetExceededError) as caught:
        budget.reserve("stream table", 4000)
    for part in ("stream table", "4 KB", "10 KB", "1.81 KB", "disk buffer 8.19 KB", "give more memory"):
        assert part in str(caught.value)
    assert isinstance(caught.value, SemistreamError)
    assert budget.parts() == {"disk buffer": 8192}
    budget.check()


def test_growing_too_far_changes_nothing() -> None:
    budget = MemoryBudget(100)
    part = budget.reserve("a", 60)
    with pytest.raises(BudgetExceededError):
        part.resize(101)
    assert (part.bytes, budget.used, budget.peak) == (60, 60, 60)
    part.resize(100)
    assert (budget.free, budget.peak) == (0, 100)
    part.resize(10)
    assert (budget.free, budget.peak) == (90, 100)


def test_releasing_gives_everything_back_once() -> None:
    budget = MemoryBudget(100)
    with budget.reserve("a", 60) as part:
        assert budget.used == 60
    assert budget.used == 0
    part.release()
    assert budget.used == 0
    assert budget.parts() == {}
    budget.check()


def test_a_released_reservation_cannot_come_back() -> None:
    budget = MemoryBudget(100)
    part = budget.reserve("a", 60)
    part.release()
    with pytest.raises(ValueError, match="released"):
        part.resize(10)
    assert budget.used == 0
    budget.check()


@pytest.mark.parametrize("total", [0, -1])
def test_a_budget_is_positive(total: int) -> None:
    with pytest.raises(ValueError, match=f"not {total}"):
        MemoryBudget(total)


def test_a_reservation_is_not_negative() -> None:
    budget = MemoryBudget(100)
    with pytest.raises(ValueError, match="-5 for a"):
        budget.reserve("a", -5)
    assert budget.parts() == {}
    budget.check()


def test_parts_of_one_name_are_added() -> None:
    budget = MemoryBudget(100)
    parts = [budget.reserve("page", 10) for _ in range(3)]
    assert budget.parts() == {"page": 30}
    parts[1].release()
    assert budget.parts() == {"page": 20}


def test_threads_never_get_more_than_there_is() -> None:
    budget = MemoryBudget(1000)
    refused = [0] * 4

    def work(number: int) -> None:
        for turn in range(300):
            try:
                part = budget.reserve(f"thread {number}", 400)
            except BudgetExceededError:
                refused[number] += 1
                continue
            part.resize(100 + turn % 200)
            part.release()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    budget.check()
    assert budget.used == 0
    assert 400 <= budget.peak <= 1000


class BudgetMachine(RuleBasedStateMachine):
    @initialize(total=st.integers(1, 1000))
    def make(self, total: int) -> None:
        self.budget = MemoryBudget(total)
        self.held: list[tuple[Reservation, int]] = []
        self.peak = 0

    @rule(size=st.integers(0, 600))
    def reserve(self, size: int) -> None:
        fits = sum(size for _, size in self.held) + size <= self.budget.total
        try:
            self.held.append((self.budget.reserve("part", size), size))
            assert fits
        except BudgetExceededError:
            assert not fits

    @rule(data=st.data(), size=st.integers(0, 600))
    def resize(self, data: st.DataObject, size: int) -> None:
        if not self.held:
            return
        at = data.draw(st.integers(0, len(self.held) - 1))
        part, before = self.held[at]
        fits = sum(size for _, size in self.held) - before + size <= self.budget.total
        try:
            part.resize(size)
            self.held[at] = (part, size)
            assert fits
        except BudgetExceededError:
            assert not fits

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.held:
            self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))[0].release()

    @invariant()
    def adds_up(self) -> None:
        if hasattr(self, "budget"):
            used = sum(size for _, size in self.held)
            self.peak = max(self.peak, used)
            assert (self.budget.used, self.budget.peak) == (used, self.peak)
            self.budget.check()


TestBudget = BudgetMachine.TestCase
TestBudget.settings = settings(max_examples=50, deadline=None)


def test_the_whole_takes_another_size() -> None:
    budget = MemoryBudget(100)
    held = budget.reserve("a", 40)
    budget.resize(200)
    held.resize(150)
    held.resize(40)
    budget.resize(100)
    budget.check()
    assert (budget.total, budget.used, budget.peak) == (100, 40, 100)
    with pytest.raises(BudgetExceededError, match="40 B"):
        budget.resize(39)
    assert budget.total == 100
