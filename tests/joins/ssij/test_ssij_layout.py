"""How SSIJ divides its memory where a page takes little time."""

from __future__ import annotations

import pytest

from semistream.joins.ssij.ssij_layout import MemoryOptions, SsijLayout

FRAME = 8192


@pytest.mark.parametrize("free", [200_000, 1_000_000, 6_000_000, 60_000_000])
def test_a_call_brings_more_pages_where_they_take_little_time(free: int) -> None:
    slow, fast = (SsijLayout.of(free, FRAME, 100_000, MemoryOptions(), transfer) for transfer in (1e-3, 2.75e-6))
    assert sum(fast.parts().values()) <= free
    assert slow.read <= fast.read <= 1 + free // 4 // FRAME
    if free == 6_000_000:
        assert slow.read < 48
        assert fast.read // fast.buffers >= 64
    if free == 60_000_000:
        assert fast.read == slow.read, "as many as ever pay"


def test_virtual_reads_leave_the_layout_as_the_model_has_it() -> None:
    options = MemoryOptions(read_ahead=False)
    assert SsijLayout.of(6_000_000, FRAME, 100_000, options) == SsijLayout.of(6_000_000, FRAME, 100_000, options, 1e-3)
