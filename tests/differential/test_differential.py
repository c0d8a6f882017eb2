"""Cases of the differential fuzz, some hundred from seeds; see `cases.py`."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pyarrow as pa
import pytest

from differential import cases
from differential.random_arrow import random_type
from differential.rounds import play, smallest
from differential.running import run
from semistream.joins.interface.join import Join
from warming import warm_up

pytestmark = pytest.mark.slow
CASES = 12
ALGORITHMS = 3


@pytest.fixture(scope="module")
def _kernels() -> None:
    warm_up()


@pytest.mark.sampled
@pytest.mark.parametrize("first", range(0, 3 * CASES, CASES))
@pytest.mark.usefixtures("_kernels")
def test_all_joins_agree_with_a_dictionary(first: int) -> None:
    """In a child process: a crash is a failure with a case, not the end of the tests."""
    done = play(first, CASES, ALGORITHMS, 300.0)
    if done.failure:
        pytest.fail(f"{done.failure}\nmade small:\n{smallest(done.failed, ALGORITHMS, 60.0)}", pytrace=False)
    assert done.cases == CASES
    assert done.refused < CASES // 3, f"most is refused, and so not tested: {done}"


def test_every_type_is_drawn() -> None:
    """What is never drawn is never tested."""
    rng, seen = Random(1), set()
    todo = [random_type(rng) for _ in range(3000)]
    while todo:
        kind = todo.pop()
        seen.add(kind.id)
        todo += [kind.field(at).type for at in range(kind.num_fields)]
        if isinstance(kind, pa.BaseExtensionType):
            todo.append(kind.storage_type)
        elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            todo.append(kind.value_type)
    ids = {name: value for name, value in vars(pa.lib).items() if name.startswith("Type_") and isinstance(value, int)}
    # intervals of these two sorts have no arrays in PyArrow
    never = {"Type_INTERVAL_MONTHS", "Type_INTERVAL_DAY_TIME"}
    assert sorted(name for name, value in ids.items() if value not in seen and name not in never) == []


def test_a_wrong_row_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge itself: results with a row too few do not pass."""
    seeds = (seed for seed in range(1000) if _plain(cases.draw(seed)))
    case = cases.draw(next(seeds))
    honest = Join.step

    def short(self: Join) -> Iterator[pa.RecordBatch]:
        for batch in honest(self):
            yield batch.slice(1)

    monkeypatch.setattr(Join, "step", short)
    with pytest.raises(AssertionError, match="lacks"):
        run(case)


def _plain(case: cases.Case) -> bool:
    """Say whether a case has integer keys, rows that match, and nothing else of note."""
    keys = {keys for side in case.master for keys in side.keys if keys}
    matched = any(keys & {*side.keys} for side in case.stream)
    return matched and len(case.key) == 1 and pa.types.is_integer(case.key[0].ours) and not case.updates
