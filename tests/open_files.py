"""Files that this process holds open in a folder; those of other tests and of servers do not count."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def open_files(folder: Path) -> list[str]:
    """Return the open files in a folder, one entry for each descriptor."""
    targets = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            targets.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    # a file that was removed while it is open: "/path (deleted)"
    return [target for target in targets if Path(target).is_relative_to(folder.resolve())]
