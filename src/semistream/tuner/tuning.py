"""Recommends a join and its options: maximises every cost model, and chooses the best."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.core.arguments import listed
from semistream.core.errors import BudgetTooSmallError, KeyColumnError
from semistream.core.units import memory_bytes
from semistream.costs import Constants, Prediction, Setting, costs_of, load_constants, modelled
from semistream.costs.basis.constants import DEFAULT, MEASURED
from semistream.joins import find
from semistream.joins.interface.conditions import check_condition
from semistream.relation.relation import Relation
from semistream.tuner.search import best_split
from semistream.tuner.skew import Skew, check_exponent, estimate_shape, estimate_skew
from semistream.workloads.keys.key_source import Shape

__all__ = ["Tuning", "choose", "compare", "describe", "skew_of", "tune", "useful_memory"]

_SAMPLE_ROWS = 1_000_000
_SEEKS = 16.0
"""Seeks of a device are expensive if a seek costs at least this many page transfers. On a disk of 2010 it costs 100."""
_USEFUL_SHARE, _USEFUL_BYTES = 1.5, 64_000_000
"""Upper limit of the memory for which models are searched, as a share of R plus bytes. The share holds all rows of R
with their directory; the bytes hold what does not depend on R. More memory changes no rate, and models of waiting
tuples would need minutes instead of seconds."""


@dataclass(frozen=True)
class Tuning:
    """The result of the tuner."""

    setting: Setting
    memory: int
    """Bytes for which the predictions hold: the budget, or less if all of R needs less."""
    predictions: list[Prediction]
    """The best split of each algorithm, the fastest first."""
    refused: dict[str, BudgetTooSmallError]
    """Algorithms for which the budget is too small."""
    skew: Skew | None = None
    """The skew estimated from the sample, if there was one."""
    measured: dict[str, float] = dataclasses.field(default_factory=dict)
    """Measured tuples per second of the joins that were run; see `semistream.tuner.trial`."""

    @property
    def best(self) -> Prediction:
        """The recommendation: the fastest measured join, or else the first of the `candidates`."""
        if self.measured:
            return max(self.predictions, key=lambda found: self.measured.get(found.algorithm, 0.0))
        return self.candidates[0]

    @property
    def candidates(self) -> list[Prediction]:
        """Joins in which no tuple can wait forever, the best first; on a device without seeks, `adaptivejoin` first.

        On such a device the models of the others are too optimistic: they assume that the CPU waits for the device.
        """
        able = [found for found in self.predictions if find(found.algorithm).bounded_wait]
        able = able or self.predictions
        if self.setting.queued_seek > _SEEKS * self.setting.transfer:
            return able
        return sorted(able, key=lambda found: not find(found.algorithm).default_for)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as numbers and text, for JSON."""
        return {
            "recommended": self.best.algorithm,
            "options": self.best.options,
            "memory": self.memory,
            "exponent": self.setting.exponent,
            "shape": self.setting.shape,
            "constants": self.setting.constants.name,
            "skew": None if self.skew is None else {**dataclasses.asdict(self.skew), "fits": self.skew.fits},
            "measured": self.measured,
            "predictions": [found.as_dict() for found in self.predictions],
            "refused": {name: error.minimum for name, error in self.refused.items()},
        }


def skew_of(relation: Relation, sample: Iterable[pa.RecordBatch], on: str | Sequence[str]) -> Skew:
    """Estimate the skew of a stream from a sample, and the position of its frequent keys in R.

    Raises
    ------
    KeyColumnError
        If the sample has no such column.
    """
    names = listed(on)
    parts: list[np.ndarray[Any, np.dtype[np.int64]]] = []
    rows = 0
    for batch in sample:
        relation.key.check_stream(batch.schema, names)
        keys, valid = relation.key.encode(batch, names)
        parts.append(keys[valid])
        rows += batch.num_rows
        if rows >= _SAMPLE_ROWS:
            break
    keys = np.concatenate(parts) if parts else np.empty(0, np.int64)
    setting = describe(relation, None)
    skew = estimate_skew(keys, setting.keys)
    pages = relation.locate(keys).pages
    return dataclasses.replace(skew, shape=estimate_shape(pages, setting.replace(exponent=skew.exponent)))


def describe(
    relation: Relation, schema: pa.Schema | None, *, exponent: float = 1.0, shape: Shape = "random",
    constants: Constants | None = None,
) -> Setting:  # fmt: skip
    """Return the setting of a relation on its own device; an unknown stream is assumed to have the key and 12 bytes."""
    check_exponent(exponent)
    if constants is None:
        constants = load_constants()
        if relation.device.simulated:  # its time is computed from single operations
            constants = dataclasses.replace(constants, processor=())
            constants = constants.on(relation.device.profile, relation.page_bytes)
        elif constants.name == DEFAULT:
            constants = load_constants(MEASURED).on(relation.device.profile, relation.page_bytes)
    if schema is None:
        fields = [relation.schema.field(name) for name in relation.key.names]
        schema = pa.schema([*fields, pa.field("__values", pa.binary(12))])
    return Setting.of(relation, schema, exponent=exponent, shape=shape, constants=constants)


def tune(
    relation: Relation,
    memory: int | float | str,
    *,
    schema: pa.Schema | None = None,
    exponent: float = 1.0,
    shape: Shape = "random",
    skew: Skew | None = None,
    algorithms: Sequence[str] | None = None,
    constants: Constants | None = None,
    setting: Setting | None = None,
) -> Tuning:
    """Split a budget for every algorithm by its model, and recommend the one with the highest rate.

    Parameters
    ----------
    memory
        The budget, as in a join.
    schema
        The stream's schema, if it is known.
    exponent
        Skew of the stream: the exponent of its Zipf law.
    shape
        Position of the frequent keys in R: "random" or "noperm".
    skew
        Both together, as `skew_of` returns them.
    algorithms
        Algorithms to compare; by default all with a model.
    constants
        Costs; by default those of this machine and of the relation's device.
    setting
        A complete setting; then only the search is done.

    Examples
    --------
    >>> from semistream.relation.synthetic import synthetic_relation
    >>> tuning = tune(synthetic_relation(500_000), "5%", exponent=1.0, algorithms=["meshjoin", "cmeshjoin"],
    ...               constants=load_constants("disk-2010"))
    >>> tuning.best.algorithm, 0.05 < tuning.best.options["cache_share"] < 0.6
    ('cmeshjoin', True)
    """
    if skew is not None:
        exponent, shape = skew.exponent, skew.shape
    if setting is None:
        setting = describe(relation, schema, exponent=exponent, shape=shape, constants=constants)
    total = memory_bytes(memory, relation.nbytes, relation.row_count)
    return compare(setting, total, algorithms, skew=skew)


def compare(
    setting: Setting, total: int, algorithms: Sequence[str] | None = None, *, skew: Skew | None = None
) -> Tuning:
    """Split a budget for every algorithm in a setting, whose relation need not exist.

    If the budget is more than enough to hold R, only the useful part is split; it is `Tuning.memory`.
    """
    total = useful_memory(setting, total)
    predictions: list[Prediction] = []
    refused: dict[str, BudgetTooSmallError] = {}
    for name in algorithms if algorithms is not None else modelled():
        find(name)
        try:
            predictions.append(best_split(costs_of(name), setting, total))
        except BudgetTooSmallError as error:
            refused[name] = error
    if not predictions:
        least = min(refused.values(), key=lambda error: error.minimum)
        raise BudgetTooSmallError(
            f"memory of {total:,} B is too small for every algorithm with this relation of {setting.pages:,} pages; "
            f"the smallest sufficient budget is about {least.minimum:,} B: give at least that",
            least.minimum,
        )
    predictions.sort(key=lambda found: -found.rate)
    return Tuning(setting, total, predictions, refused, skew)


def useful_memory(setting: Setting, total: int) -> int:
    """Return the part of a budget beyond which more memory changes no rate."""
    return min(total, max(int(_USEFUL_SHARE * setting.pages * setting.page_bytes), _USEFUL_BYTES))


def choose(
    relation: Relation,
    *,
    on: str | Sequence[str],
    memory: int | float | str = "64MB",
    schema: pa.Schema | None = None,
    sample: Iterable[pa.RecordBatch] | None = None,
    exponent: float | None = None,
    condition: str = "equal",
) -> Prediction:
    """Return algorithm and options for ``algorithm="auto"``.

    On a device without seeks it is `adaptivejoin`, if the memory is sufficient for it. The models of the other joins
    assume that tuples may wait for as long as that increases the rate, and that the CPU is mostly idle. Both are wrong
    for usual streams. If seeks are expensive, it is the recommendation of the tuner.
    """
    if sample is not None and exponent is None:
        skew = skew_of(relation, sample, on)
    else:
        skew = None
    defaults = [name for name in _able(condition) if condition in find(name).default_for]
    if defaults and not _seeks(relation):
        try:
            s = exponent if skew is None else skew.exponent
            setting = describe(relation, schema, exponent=1.0 if s is None else s)
            total = memory_bytes(memory, relation.nbytes, relation.row_count)
            return best_split(costs_of(defaults[0]), setting, total)
        except BudgetTooSmallError:
            pass  # others may need less
    if skew is not None:
        tuning = tune(relation, memory, schema=schema, skew=skew, algorithms=_able(condition))
    else:
        s = 1.0 if exponent is None else exponent
        tuning = tune(relation, memory, schema=schema, exponent=s, algorithms=_able(condition))
    return tuning.best


def _seeks(relation: Relation) -> bool:
    """Return whether a random page costs many times a sequential page, even if many are requested together."""
    profile = relation.device.profile
    return profile.queued_seek_seconds > _SEEKS * profile.transfer_seconds


def _able(condition: str) -> list[str]:
    check_condition(condition)
    kinds = {name: find(name) for name in modelled()}
    able = [
        name
        for name, kind in kinds.items()
        if condition in kind.conditions and (not kind.default_for or condition in kind.default_for)
    ]
    if not able:
        raise KeyColumnError(f"no algorithm with a model joins on condition {condition!r}")
    return able
