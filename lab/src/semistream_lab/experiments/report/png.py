"""Smaller pictures of charts: with a palette they take a tenth of the renderer's bytes, as a chart has few colours."""

from __future__ import annotations

import io

from PIL import Image

__all__ = ["smaller"]


def smaller(png: bytes) -> bytes:
    """Return the same picture with a palette of up to 256 colours."""
    # a chart has no transparency, and colours beyond 256 are only shades of antialiasing
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    few = picture.quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    written = io.BytesIO()
    few.save(written, "png", optimize=True)
    return written.getvalue()
