"""How memory is limited: groups of both versions, whose they may be, and what is done without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from semistream_lab.benchmarks.tournament.memory_limit import (
    CgroupError,
    MemoryGroup,
    drop_page_cache,
    own_parent,
    said,
)


def files(folder: Path, **contents: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_second_version(tmp_path: Path) -> None:
    parent = files(tmp_path / "mine", cgroup__controllers="cpu memory", cgroup__subtree_control="")
    group = MemoryGroup.make(parent, "one")
    assert (parent / "cgroup.subtree_control").read_text() == "+memory"
    files(group.path, memory__current="1000\n")
    group.add(77)
    assert group.limit(500) == 1500
    assert (group.path / "cgroup.procs").read_text() == "77"
    assert (group.path / "memory.max").read_text() == "1500"


def test_first_version(tmp_path: Path) -> None:
    parent = files(tmp_path / "mine", memory__limit_in_bytes="9223372036854771712")
    group = MemoryGroup.make(parent, "one")
    files(group.path, memory__usage_in_bytes="2000\n")
    assert group.limit(500) == 2500
    assert (group.path / "memory.limit_in_bytes").read_text() == "2500"


def test_a_folder_that_is_no_group_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CgroupError, match="is not a memory cgroup"):
        MemoryGroup.make(tmp_path, "one")
    parent = files(tmp_path / "mine", memory__limit_in_bytes="1")
    (parent / "one").mkdir()
    with pytest.raises(CgroupError, match="cannot create groups"):
        MemoryGroup.make(parent, "one")


def test_only_groups_of_this_user_are_used_unasked(tmp_path: Path) -> None:
    """As systemd arranges it: a slice of the user's, which hands memory on, and below it the session's scope."""
    process = tmp_path / "cgroup"
    process.write_text("0::/user.slice/app.slice/session.scope\n")
    files(tmp_path / "root/user.slice/app.slice/session.scope", cgroup__subtree_control="")
    files(tmp_path / "root/user.slice/app.slice", cgroup__subtree_control="cpu memory")
    mine, other = (tmp_path / "root/user.slice").stat().st_uid, 12345
    if mine != 0:
        assert own_parent(process, tmp_path / "root", mine) == tmp_path / "root/user.slice/app.slice"
    assert own_parent(process, tmp_path / "root", other) is None
    assert own_parent(process, tmp_path / "root", 0) is None, "root owns all groups, and made none of them"
    process.write_text("4:memory:/somebody\n")
    assert own_parent(process, tmp_path / "root", mine) is None


def test_results_say_how() -> None:
    assert "page cache included" in said(Path("/sys/fs/cgroup/mine"))
    assert "RLIMIT_DATA" in said(None)
    assert "not limited within" in said(None)


def test_a_process_that_takes_more_data_fails() -> None:
    code = (
        "from semistream_lab.benchmarks.tournament.memory_limit import limit_data\n"
        "limit_data(50 << 20)\n"
        "kept = bytearray(1000 << 20)\n"
        "try:\n    bytearray(100 << 20)\nexcept MemoryError:\n    print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "refused"


def test_dropping_leaves_contents_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(os.urandom(10_000))
    before = (tmp_path / "file").read_bytes()
    drop_page_cache([tmp_path / "file"])
    assert (tmp_path / "file").read_bytes() == before
