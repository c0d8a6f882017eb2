"""R-MESHJOIN: MESHJOIN's model with a separately sized disk buffer (HYBRIDJOIN §3; X-HYBRIDJOIN §5.1)."""

from __future__ import annotations

from semistream.costs.basis.setting import Setting
from semistream.costs.meshjoin import MeshJoinCosts

__all__ = ["COSTS", "RMeshJoinCosts"]

_PAGES_A_SEEK = 8


class RMeshJoinCosts(MeshJoinCosts):
    """The same loop; the size of the disk buffer depends on the disk, not on R."""

    id = "r_meshjoin"
    pages_option = "disk_pages"

    def _default(self, setting: Setting, room: int, seek: float) -> int:
        return min(int(_PAGES_A_SEEK * seek), room // 4 // setting.frame_bytes)


COSTS = (RMeshJoinCosts(),)
