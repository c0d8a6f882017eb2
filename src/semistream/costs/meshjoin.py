"""MESHJOIN: R is scanned cyclically (CMESHJOIN §2; HYBRIDJOIN §3; X-HYBRIDJOIN §5.1).

=============  =============================================================================================
symbol         meaning
=============  =============================================================================================
``b``          pages of a partition
``k``          partitions of R: ``ceil(N_R / b)``, iterations that a tuple waits
``w``          stream tuples that enter, and leave, in an iteration
``h_S``        capacity in stream tuples: ``k`` partitions of the queue and the one being filled
=============  =============================================================================================

Memory is ``M = b·v_P + (k + 1)·w·(bytes of a waiting tuple)``, plus what every join holds. An iteration takes
``S + T·b + c_H·(R_t / k) + w·(c_S + c_A + c_E + K·c_O)``, and ``μ = w / iteration``. Skew has no effect.
"""

from __future__ import annotations

import math
from typing import Any

from semistream.costs.basis.model import Memory, common_memory
from semistream.costs.basis.popularity import KeyClasses
from semistream.costs.basis.served import DiskCosts, Served, matched_in_passes
from semistream.costs.basis.setting import Setting
from semistream.joins.families.cyclic import Scan
from semistream.joins.meshjoin import pages_of_partition
from semistream.structures.stream_table import StreamTable

__all__ = ["COSTS", "MeshJoinCosts"]


class MeshJoinCosts(DiskCosts):
    """The published model (M = b·v_P + w·v_S + k·w·(f·v_S + q)), with our bytes for a waiting tuple."""

    id = "meshjoin"
    index = False
    pages_option = "partition_pages"

    def serve(self, setting: Setting, memory: int, keys: KeyClasses, **options: Any) -> Served:
        options = _in_pages(setting, options)
        parts, b, capacity = self._split(setting, memory, **options)
        turns = math.ceil(setting.pages / b)
        w = max(1, capacity // (turns + 1))
        return Served(
            parts,
            {**options, self.pages_option: b},
            probes=setting.rows / turns / w,
            reads=1.0 / w,
            pages=setting.pages / turns / w,
            seek=setting.seek,
            turns=1.0 / w,
            events=matched_in_passes(keys, w * turns / max(keys.miss_share, 1e-12)),
            details={"w": w, "h_S": w * turns, "k": turns},
        )

    def least(self, setting: Setting, **options: Any) -> int:
        given = _in_pages(setting, options).get(self.pages_option)
        if given is not None:
            return _scan(setting).needed(given)
        scan = _scan(setting)
        return scan.needed(scan.thriftiest())

    def choices(self, setting: Setting, memory: int) -> dict[str, list[Any]]:
        """Return partition sizes in steps of a quarter, as long as at least one tuple per iteration can enter."""
        values: list[int] = []
        b = 1
        room = common_memory(setting, memory, index=False).free
        while b <= setting.pages and b * setting.frame_bytes < room:
            if _scan(setting).needed(b) <= room:
                values.append(b)
            b = max(b + 1, int(b * 1.25))
        return {self.pages_option: values}

    def _split(
        self, setting: Setting, total: int, *, seek_pages: float = 16.0, **options: int | None
    ) -> tuple[Memory, int, int]:
        """Return the parts, ``b``, and the capacity of the stream table."""
        memory = common_memory(setting, total, index=False)
        b = options.get(self.pages_option)
        if b is None:
            least = _scan(setting).least(memory.free)
            b = min(max(self._default(setting, memory.free, seek_pages), least), setting.pages)
        if _scan(setting).needed(b) > memory.free:
            raise self.too_small(setting, memory, _scan(setting).needed(b))
        memory.give("disk buffer", b * setting.frame_bytes)
        capacity = (memory.free - StreamTable.fixed_bytes()) // setting.waiting_bytes
        memory.give("stream table", capacity * setting.waiting_bytes + StreamTable.fixed_bytes())
        return memory, b, capacity

    def _default(self, setting: Setting, room: int, seek: float) -> int:
        """Return the join's default: the maximum of ``h_S·b / (S/T + b)``."""
        return int(math.sqrt(seek * seek + seek * max(room, 0) / setting.frame_bytes) - seek)


def _in_pages(setting: Setting, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the number of partitions converted to pages, as in the join."""
    others = {name: value for name, value in options.items() if name != "partitions"}
    if options.get("partitions") is None:
        return others
    return {**others, "partition_pages": pages_of_partition(setting.pages, options["partitions"])}


def _scan(setting: Setting) -> Scan:
    return Scan(setting.pages, setting.frame_bytes, setting.waiting_bytes)


COSTS = (MeshJoinCosts(),)
