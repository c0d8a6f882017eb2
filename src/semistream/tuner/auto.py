"""``semistream.create``: creates a join by its id, or ``"auto"`` for the tuner's recommendation."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from semistream.core.arguments import listed
from semistream.joins import AUTO, Join
from semistream.joins import create as create_by_id
from semistream.relation.relation import Relation
from semistream.relation.storage.secondary_index import Columns
from semistream.tuner.tuning import choose

__all__ = ["AUTO", "create"]


def create(
    algorithm: str,
    relation: Relation | str | os.PathLike[str],
    *,
    by: Columns | None = None,
    sample: Iterable[pa.RecordBatch] | None = None,
    exponent: float | None = None,
    **options: Any,
) -> Join:
    """Create a join by its id; see `semistream.Join` and the algorithm's class for the options.

    Parameters
    ----------
    algorithm
        One of `semistream.algorithms`, or ``"auto"``: then the cost models choose algorithm and options for this
        relation, device and memory. Given options are not changed.
    relation
        An open relation, or its path. For a path the newest version is opened, and `Join.close` closes it.
    by
        Columns of a secondary index of the relation, to join on these instead of its key; see `Relation.add_index`. The
        join then opens the relation's version itself, and does not take part in later updates.
    sample
        Batches of the stream, to estimate its skew; only for ``"auto"``.
    exponent
        The stream's Zipf exponent, if it is known; only for ``"auto"``. With neither, 1 is assumed.

    Examples
    --------
    >>> import pyarrow as pa, tempfile, semistream
    >>> products = pa.table({"id": [1, 2, 3], "name": ["apple", "fig", "pear"]})
    >>> sales = pa.record_batch({"id": [3, 1, 9], "amount": [10, 20, 30]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     semistream.Relation.build(products, f"{folder}/products", key="id").close()
    ...     with semistream.create("auto", f"{folder}/products", on="id", how="left", memory="1MB") as join:
    ...         result = pa.Table.from_batches(join.process([sales]))
    >>> result.sort_by("amount").to_pydict()
    {'id': [3, 1, 9], 'amount': [10, 20, 30], 'name': ['pear', 'apple', None]}
    """
    if by is not None or isinstance(relation, str | os.PathLike):
        with contextlib.ExitStack() as undo:
            opened = undo.enter_context(_opened(relation, by))
            join = create(algorithm, opened, sample=sample, exponent=exponent, **options)
            join.own_relation()
            undo.pop_all()
        return join
    if algorithm != AUTO:
        if sample is not None or exponent is not None:
            raise ValueError(f"sample and exponent are for algorithm={AUTO!r}, not for {algorithm!r}; leave them out")
        return create_by_id(algorithm, relation, **options)
    if "on" in options:
        options["on"] = listed(options["on"])  # used here and by the join
    told = {name: options[name] for name in ("on", "memory", "schema", "condition") if name in options}
    best = choose(relation, sample=sample, exponent=exponent, **told)
    return create_by_id(best.algorithm, relation, **{**best.options, **options})


def _opened(relation: Relation | str | os.PathLike[str], by: Columns | None) -> Relation:
    if isinstance(relation, Relation):
        assert by is not None
        return relation.by(by)
    return Relation.open(relation, by=by)
