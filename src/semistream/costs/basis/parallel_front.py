"""P- and OP-CACHEJOIN: stream probing and disk probing in parallel (P-/OP-CACHEJOIN, Eq. 1 to 3).

=============  =============================================================================================
symbol         meaning
=============  =============================================================================================
``i_B``        tuples that the intermediate buffer holds
``d``          pages of a disk buffer; OP-CACHEJOIN has two
``w_N, w_S``   as for CACHEJOIN
=============  =============================================================================================

Stream probing costs ``c_S + c_H`` per tuple, ``c_F + K·c_O`` per hit, and ``c_AI`` per miss. Disk probing costs each
miss its part of a read, ``c_A + c_E + K·c_O``, and its probes. The phases overlap, so the slower one decides. With
OP-CACHEJOIN the device is a third phase, because loading continues while the other buffer is probed. (The papers add
the phases up, and halve ``c_IO`` for OP.)

A small ``i_B`` costs little memory, but passes few tuples between two iterations of the disk phase. If it holds fewer
tuples than an iteration answers, the table behind does not fill up, and each read answers fewer. So ``i_B`` has an
optimum.
"""

from __future__ import annotations

from typing import Any

from semistream.costs.basis.front_stage import FrontCosts
from semistream.costs.basis.model import Memory
from semistream.costs.basis.popularity import KeyClasses
from semistream.costs.basis.served import Served
from semistream.costs.basis.setting import LentParts, Setting
from semistream.joins.shares import parts_between

__all__ = ["ParallelFrontCosts"]


class ParallelFrontCosts(FrontCosts):
    """The front stage with an intermediate buffer behind it."""

    def _before(self, setting: Setting, parts: Memory, *, buffer_share: float = 0.02, **options: Any) -> None:
        ahead, buffer = parts_between(parts.total, parts.free, self._least(setting, **options), buffer_share)
        parts.give("results ahead", ahead)
        parts.give("intermediate buffer", buffer)

    def _behind(self, setting: Setting, parts: Memory, keys: KeyClasses, **options: Any) -> Served:
        most = parts.parts["intermediate buffer"] / setting.buffered_bytes
        options = {name: value for name, value in options.items() if name not in ("buffer_share", "threads")}
        missed = keys.miss_share
        piece = max(1.0, self._portion(setting, parts, missed) * missed)
        return super()._behind(setting, parts, keys, most=most, piece=piece, **options)

    def _lent(self, setting: Setting, parts: Memory, missed: float) -> LentParts:
        return LentParts(self.lends, parts.parts["intermediate buffer"])

    def choices(self, setting: Setting, memory: int) -> dict[str, list[Any]]:
        shares = [0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.08]
        return {**super().choices(setting, memory), "buffer_share": shares}
