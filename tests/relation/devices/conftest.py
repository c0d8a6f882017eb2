"""Files of pages to read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from page_files import write_pages
from semistream.relation.devices.device import Frames


@pytest.fixture(scope="module")
def three_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[tuple[Path, int]], Frames]:
    """Files of 40, 1 and 200 pages of 4 KiB, and one without any."""
    folder = tmp_path_factory.mktemp("pages")
    files, contents = [], []
    for number, pages in enumerate((40, 0, 1, 200)):
        path = folder / f"{number}.pages"
        contents.append(write_pages(path, pages, 4096, seed=number))
        files.append((path, pages))
    return files, np.concatenate(contents)
