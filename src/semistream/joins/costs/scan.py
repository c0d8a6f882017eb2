"""MESHJOIN and R-MESHJOIN: R is read in a circle (CMESHJOIN §2; HYBRIDJOIN §3; X-HYBRIDJOIN §5.1).

=============  =============================================================================================
symbol         meaning
=============  =============================================================================================
``b``          pages of a partition
``k``          partitions of R: ``ceil(N_R / b)``, turns that a tuple waits
``w``          stream tuples that enter, and leave, in a turn
``h_S``        stream tuples that fit: those of ``k`` partitions of the queue and the one that forms
=============  =============================================================================================

Memory is ``M = b·v_P + (k + 1)·w·(bytes of a waiting tuple)`` beside what every join holds. A turn takes
``S + T·b + c_H·(R_t / k) + w·(c_S + c_A + c_E + K·c_O)`` and ``μ = w / turn``; skew plays no part.
"""

from __future__ import annotations

import math
from typing import Any

from semistream.joins.costs.model import Costs, Memory, Prediction, common_memory
from semistream.joins.costs.pricing import Operations
from semistream.joins.costs.setting import Setting
from semistream.structures.stream_table import StreamTable

__all__ = ["MeshJoinCosts"]


class MeshJoinCosts(Costs):
    """The published model (M = b·v_P + w·v_S + k·w·(f·v_S + q)), with our bytes for a waiting tuple."""

    id = "meshjoin"

    def memory(self, setting: Setting, memory: int, **options: Any) -> dict[str, int]:
        return self._split(setting, memory, **options)[0].parts

    def predict(self, setting: Setting, memory: int, **options: Any) -> Prediction:
        parts, b, capacity = self._split(setting, memory, **options)
        turns = math.ceil(setting.pages / b)
        w = max(1, capacity // (turns + 1))
        operations = Operations(
            rows_out=setting.rows_per_key, probes=setting.rows / turns / w, appended=1.0, evicted=1.0
        )
        return self._result(
            setting, parts, {**options, "partition_pages": b}, operations,
            reads=1.0 / w, pages=setting.pages / turns / w, seek=setting.seek, w=w, h_S=w * turns, k=turns,
        )  # fmt: skip

    def choices(self, setting: Setting, memory: int) -> dict[str, list[Any]]:
        """Return partition sizes in steps of a quarter, as far as a tuple a turn can enter."""
        values: list[int] = []
        b = 1
        room = common_memory(setting, memory, index=False).free
        while b <= setting.pages and b * setting.frame_bytes < room:
            if b * setting.frame_bytes + self._least_table(setting, b) <= room:
                values.append(b)
            b = max(b + 1, int(b * 1.25))
        return {"partition_pages": values}

    @staticmethod
    def _least_table(setting: Setting, b: int) -> int:
        return (math.ceil(setting.pages / b) + 1) * setting.waiting_bytes + StreamTable.fixed_bytes()

    def _split(
        self, setting: Setting, total: int, *, partition_pages: int | None = None, seek_pages: float = 16.0
    ) -> tuple[Memory, int, int]:
        """Return the parts, ``b``, and the capacity of the stream table."""
        memory = common_memory(setting, total, index=False)
        b = partition_pages or self._default_partition(setting, memory.free, seek_pages)
        if b * setting.frame_bytes + self._least_table(setting, b) > memory.free:
            raise self._too_small(setting, memory, b * setting.frame_bytes + self._least_table(setting, b))
        memory.give("disk buffer", b * setting.frame_bytes)
        capacity = (memory.free - StreamTable.fixed_bytes()) // setting.waiting_bytes
        memory.give("stream table", capacity * setting.waiting_bytes + StreamTable.fixed_bytes())
        return memory, b, capacity

    def _default_partition(self, setting: Setting, room: int, seek: float) -> int:
        """Return what the join chooses by itself: the maximum of ``h_S·b / (S/T + b)``."""
        best = int(math.sqrt(seek * seek + seek * room / setting.frame_bytes) - seek)
        least = 1
        while least < setting.pages and least * setting.frame_bytes + self._least_table(setting, least) > room:
            least = max(least + 1, int(least * 1.25))
        return min(max(best, least, 1), setting.pages)
