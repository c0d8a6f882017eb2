"""The bit test: whatever happens to a file, a relation is refused, or gives the same rows, or is mended; never others.

By default bits are drawn at random; with SEMISTREAM_SOAK set every bit of every file is flipped.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from damage import KINDS, PAGE, Specimen
from semistream.relation.damage.repair import RepairError, repair

pytestmark = pytest.mark.slow

SOAK = bool(os.environ.get("SEMISTREAM_SOAK"))
BITS = 1 << 30 if SOAK else 8
"""Bits of each file."""
DAMAGES = 1 << 30 if SOAK else 5
"""Other damages of each file."""


@pytest.fixture(scope="module", params=list(KINDS))
def relation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Specimen:
    return Specimen(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def specimen(relation: Specimen) -> Iterator[Specimen]:
    yield relation
    relation.restore()


def flip(file: Path, bit: int) -> None:
    with open(file, "r+b") as opened:
        opened.seek(bit // 8)
        (byte,) = opened.read(1)
        opened.seek(bit // 8)
        opened.write(bytes([byte ^ 1 << bit % 8]))


@pytest.mark.sampled(3)
def test_every_flipped_bit_is_detected_and_mended_by_itself(specimen: Specimen) -> None:
    for name, bit in specimen.bits(BITS, seed=len(specimen.sound)):
        flip(specimen.path / name, bit)
        assert specimen.outcome() == "detected", f"bit {bit} of {name}"
        repaired = repair(specimen.path)
        assert [Path(one.file).name for one in repaired] == [name], f"bit {bit} of {name}"
        assert specimen.contents() == specimen.sound, f"bit {bit} of {name}"


def damages(name: str, content: bytes, generator: np.random.Generator) -> Iterator[tuple[str, bytes | None]]:
    """Yield what may become of a file, other than flipped bits."""
    yield "gone", None
    yield "emptied", b""
    size = len(content)
    for cut in {1, size // 2, size - 1, max(0, size - PAGE)}:
        yield f"cut to {cut}", content[:cut]
    for more in (b"\0", b"x" * 7, bytes(PAGE), content[-PAGE:], content):
        yield f"{len(more)} bytes longer", content + more
    for width in (1, 8, 64, PAGE):
        at = int(generator.integers(0, max(1, size - width)))
        for what, block in (("zeros", bytes(width)), ("noise", generator.bytes(width))):
            changed = content[:at] + block + content[at + width :]
            if changed != content and len(changed) == size:
                yield f"{what} in {width} bytes at {at}", changed
    if not name.endswith((".json", ".index", ".map")) and size > PAGE:
        pages = [content[at : at + PAGE] for at in range(0, size, PAGE)]
        yield "two pages exchanged", b"".join([pages[1], pages[0], *pages[2:]])
        yield "a page twice", b"".join([pages[0], pages[0], *pages[2:]])


@pytest.mark.sampled(3)
def test_other_damage_is_detected_and_mended_from_a_copy(specimen: Specimen) -> None:
    generator = np.random.default_rng(5)
    for name, content in sorted(specimen.sound.items()):
        possible = list(damages(name, content, generator))
        generator.shuffle(possible)
        for what, changed in possible[:DAMAGES]:
            file = specimen.path / name
            _put(file, changed)
            if changed is None and name.endswith(".json"):  # a version that is not there
                specimen.restore()
                continue
            assert specimen.outcome() == "detected", f"{name}: {what}"
            _repaired_alone(specimen, name, what)
            _put(file, changed)
            repair(specimen.path, copy=specimen.copy)
            assert specimen.contents() == specimen.sound, f"{name}: {what}"


def _put(file: Path, content: bytes | None) -> None:
    file.unlink(missing_ok=True)
    if content is not None:
        file.write_bytes(content)


def _repaired_alone(specimen: Specimen, name: str, what: str) -> None:
    """Repair without any source: all is well again, or it is said, and nothing sound was touched."""
    before = specimen.contents()
    try:
        repair(specimen.path)
        assert specimen.contents() == specimen.sound, f"{name}: {what}"
    except RepairError:
        after = specimen.contents()
        sound = {other for other in specimen.sound if other != name}
        assert {other: after[other] for other in sound} == {other: specimen.sound[other] for other in sound}
        assert set(after) <= {*before, name}, "something was left behind"
        if name in before and len(before[name]) > len(after[name]):
            assert after[name] == specimen.sound[name][: len(after[name])], f"{name}: {what}: cut off"


def test_a_file_in_the_place_of_another_is_detected(specimen: Specimen) -> None:
    for one, other in itertools.permutations(sorted(specimen.sound), 2):
        if specimen.sound[one] == specimen.sound[other] or (other.endswith(".json") != one.endswith(".json")):
            continue
        (specimen.path / one).write_bytes(specimen.sound[other])
        assert specimen.outcome() == "detected", f"{other} in the place of {one}"
        specimen.restore()


def test_a_page_in_another_file_is_detected(specimen: Specimen) -> None:
    files = [name for name in sorted(specimen.sound) if name.endswith((".pages", ".delta", ".leaves"))]
    for one, other in itertools.permutations(files, 2):
        content = specimen.sound[other][:PAGE] + specimen.sound[one][PAGE:]
        (specimen.path / one).write_bytes(content)
        assert specimen.outcome() == "detected", f"page 0 of {other} in {one}"
        specimen.restore()
