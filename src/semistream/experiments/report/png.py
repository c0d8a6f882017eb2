"""Pictures of charts, a tenth of the size that the renderer writes them: a chart has few colours.

The renderer's PNG has four bytes a pixel, predicted from the left neighbour and hardly compressed. Here it becomes a
palette of up to 256 colours, shades of antialiasing rounded until they fit.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["smaller"]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGBA = (8, 6, 0, 0, 0)
_LEFT_NEIGHBOUR = 1


def smaller(png: bytes) -> bytes:
    """Return the same picture in fewer bytes; anything but what the renderer writes is returned as it is."""
    chunks = dict(_chunks(png))
    header = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    width, height = header[:2]
    if header[2:] != _RGBA:
        return png
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 4 * width)
    if (rows[:, 0] != _LEFT_NEIGHBOUR).any():
        return png
    pixels = np.cumsum(rows[:, 1:].reshape(height, width, 4), axis=1, dtype=np.uint8)
    palette, indices = _palette(pixels[..., :3])
    if palette is None:
        return png
    data = np.concatenate([np.zeros((height, 1), np.uint8), indices], axis=1).tobytes()
    return b"".join([
        _SIGNATURE,
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        _chunk(b"PLTE", palette.tobytes()),
        _chunk(b"IDAT", zlib.compress(data, 9)),
        _chunk(b"IEND", b""),
    ])  # fmt: skip


def _palette(pixels: NDArray[np.uint8]) -> tuple[NDArray[np.uint8] | None, NDArray[np.uint8]]:
    """Return up to 256 colours and which of them each pixel has."""
    for step in (1, 4, 8, 16, 32):
        # rounded so that black and white stay what they are
        rounded = pixels if step == 1 else np.minimum((pixels.astype(np.int32) + step // 2) // step * step, 255)
        words = (rounded.astype(np.uint32) << np.array([16, 8, 0], np.uint32)).sum(axis=2, dtype=np.uint32)
        found, indices = np.unique(words, return_inverse=True)
        if found.size <= 256:
            colours = np.stack([found >> 16, found >> 8 & 255, found & 255], axis=1).astype(np.uint8)
            return colours, indices.reshape(words.shape).astype(np.uint8)
    return None, np.empty(0, np.uint8)


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the parts of a PNG, the pieces of its data put together."""
    at, data = len(_SIGNATURE), []
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        content = png[at + 8 : at + 8 + length]
        if kind == b"IDAT":
            data.append(content)
        else:
            yield kind, content
        at += 12 + length
    yield b"IDAT", b"".join(data)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
