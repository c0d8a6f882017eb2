"""Pictures get small and stay what they were."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from semistream_lab.experiments.report.png import smaller


def _png(pixels: np.ndarray) -> bytes:
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "png")
    return written.getvalue()


def test_few_colours_are_kept_to_the_bit_in_fewer_bytes() -> None:
    colours = np.random.default_rng(1).integers(0, 256, (200, 4), np.uint8)
    colours[:, 3] = 255
    png = _png(colours[np.random.default_rng(2).integers(0, 200, (64, 64))])
    small = smaller(png)
    assert len(small) < len(png)
    picture = Image.open(io.BytesIO(small))
    assert picture.mode == "P"
    before = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    assert np.array_equal(np.asarray(picture.convert("RGB")), before)


def test_more_colours_than_a_palette_has_become_near_ones() -> None:
    shades = np.stack(np.meshgrid(np.arange(0, 256, 4), np.arange(0, 256, 4)), axis=2).astype(np.uint8)
    pixels = np.concatenate([shades, np.zeros((64, 64, 1), np.uint8), np.full((64, 64, 1), 255, np.uint8)], axis=2)
    after = np.asarray(Image.open(io.BytesIO(smaller(_png(pixels)))).convert("RGB"))
    assert np.abs(after.astype(int) - pixels[..., :3]).max() <= 16
