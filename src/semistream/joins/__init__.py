"""The joins: one file per algorithm, registered automatically.

``semistream.algorithms()`` lists them; `create` makes one by its id. This package exports what the author of a join
needs: `Join` to derive from, `Algorithm` for the contract, `PageLookup` and `find_rows` to find rows of R, `Tuples` and
`Overlap`. ``docs/how-to/add-an-algorithm.md`` shows how to write a join. Another package registers its modules as entry
points of ``semistream.joins`` and ``semistream.costs``.
"""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

from semistream.core.arguments import check_text, nearest
from semistream.core.errors import UnknownAlgorithmError
from semistream.core.plugins import modules_of
from semistream.joins.interface.contract import Algorithm, Overlap
from semistream.joins.interface.join import How, Join
from semistream.joins.interface.stream_buffer import Tuples
from semistream.relation.pages.page_layout import find_rows
from semistream.relation.relation import Relation
from semistream.structures.lookup import PageLookup

__all__ = [
    "AUTO",
    "Algorithm",
    "How",
    "Join",
    "Overlap",
    "PageLookup",
    "Tuples",
    "algorithms",
    "create",
    "find",
    "find_rows",
]

AUTO = "auto"
"""Used instead of an algorithm's id: the tuner chooses, see `semistream.create`."""


@functools.cache
def _registry() -> dict[str, type[Join]]:
    """Find the joins: listed classes with their own id, in the module that defines them."""
    found = [
        kind
        for module in modules_of(__name__)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Join) and kind.__module__ == module.__name__
        if "id" in vars(kind) and kind.listed
    ]
    return {kind.id: kind for kind in sorted(found, key=lambda kind: (kind.place, kind.id))}


def algorithms() -> list[str]:
    """Return the ids of all joins."""
    return list(_registry())


def find(algorithm: str) -> type[Join]:
    """Return the class of an algorithm."""
    check_text("the id of an algorithm", algorithm=algorithm)
    try:
        return _registry()[algorithm]
    except KeyError:
        raise UnknownAlgorithmError(algorithm, _registry()) from None


def create(algorithm: str, relation: Relation, **options: Any) -> Join:
    """Make a join by its id; see `Join` and the algorithm's class for the options.

    Examples
    --------
    >>> import pyarrow as pa, tempfile, semistream
    >>> products = pa.table({"id": [1, 2, 3], "name": ["apple", "fig", "pear"]})
    >>> sales = pa.record_batch({"id": [3, 1, 9], "amount": [10, 20, 30]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     relation = semistream.Relation.build(products, f"{folder}/products", key="id")
    ...     join = semistream.create("hybridjoin", relation, on="id", how="left", memory="1MB")
    ...     result = pa.Table.from_batches(join.process([sales]))
    >>> result.sort_by("amount").to_pydict()
    {'id': [3, 1, 9], 'amount': [10, 20, 30], 'name': ['pear', 'apple', None]}
    """
    kind = find(algorithm)
    if not isinstance(relation, Relation):
        raise TypeError(
            f"a join takes an open relation, not {type(relation).__name__}; build one with semistream.Relation.build, "
            "or open it with semistream.Relation.open(path)"
        )
    try:
        return kind(relation, **options)
    except TypeError as error:
        if (wrong := re.search(r"unexpected keyword argument '(\w+)'", str(error))) is None:
            raise
        known = _options(kind)
        hint = nearest(wrong[1], known, f"it has {', '.join(known)}")
        raise TypeError(f"{algorithm} has no option {wrong[1]!r}; {hint}") from error


def _options(kind: type[Join]) -> list[str]:
    """Return the names of a join's options, including those of a join behind it."""
    behind = getattr(kind, "behind", None)
    found = {
        name
        for part in (*kind.__mro__, *(behind.__mro__ if isinstance(behind, type) else ()))
        if issubclass(part, Join)
        for name, given in inspect.signature(part.__init__).parameters.items()
        if given.kind is inspect.Parameter.KEYWORD_ONLY
    }
    return sorted(found)
