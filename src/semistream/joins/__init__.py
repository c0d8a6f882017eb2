"""The joins: one file an algorithm, one line here each.

``semistream.algorithms()`` lists them; `create` makes one by its id.
"""

from __future__ import annotations

from typing import Any

from semistream.core.errors import UnknownAlgorithmError
from semistream.joins.base import How, Join
from semistream.joins.cachejoin import CacheJoin
from semistream.joins.cmeshjoin import CMeshJoin
from semistream.joins.front_joins import FrontInlj, FrontSsij, FrontXHybridJoin
from semistream.joins.hybridjoin import HybridJoin
from semistream.joins.inlj import Inlj
from semistream.joins.meshjoin import MeshJoin
from semistream.joins.op_cachejoin import OPCacheJoin
from semistream.joins.oracle import Oracle
from semistream.joins.p_cachejoin import PCacheJoin
from semistream.joins.partitioned_join import PartitionedJoin
from semistream.joins.r_meshjoin import RMeshJoin
from semistream.joins.ssij import Ssij
from semistream.joins.x_hybridjoin import XHybridJoin
from semistream.relation.relation import Relation

__all__ = ["How", "Join", "algorithms", "create", "find"]

_REGISTRY: dict[str, type[Join]] = {
    join.id: join
    for join in (
        Oracle,
        Inlj,
        MeshJoin,
        RMeshJoin,
        PartitionedJoin,
        HybridJoin,
        XHybridJoin,
        CMeshJoin,
        CacheJoin,
        FrontInlj,
        FrontXHybridJoin,
        PCacheJoin,
        OPCacheJoin,
        Ssij,
        FrontSsij,
    )
}


def algorithms() -> list[str]:
    """Return the ids of all joins."""
    return list(_REGISTRY)


def find(algorithm: str) -> type[Join]:
    """Return the class of an algorithm."""
    try:
        return _REGISTRY[algorithm]
    except KeyError:
        raise UnknownAlgorithmError(algorithm, _REGISTRY) from None


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
    return find(algorithm)(relation, **options)
