"""Files of pages for tests of devices, and the ways to read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from semistream.relation.devices.device import Frames
from semistream.relation.devices.reader import Method
from semistream.relation.storage.checksum import seal

WAYS: list[tuple[bool, Method]] = [(True, "queue"), (True, "threads"), (False, "readahead")]
ways = pytest.mark.parametrize(("direct", "method"), WAYS)


def write_pages(path: Path, pages: int, page_bytes: int, seed: int = 0) -> Frames:
    frames = np.random.default_rng(seed).integers(0, 256, (pages, page_bytes), dtype=np.uint8)
    seal(frames, 0)
    frames.tofile(path)
    return frames
