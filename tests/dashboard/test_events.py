"""Messages to pages: all that was said before the end is sent, whatever a page was being sent then."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("starlette")

from event_loops import in_own_loop
from semistream.dashboard.web import Events


def test_what_was_said_before_the_end_is_sent() -> None:
    async def received() -> list[str]:
        events = Events()
        stream = events.stream()
        first = await anext(stream)  # as if this were still on its way to a slow page
        events.send("point", 1)
        events.send("state", "ended")
        events.close()
        return [first, *[text async for text in stream]]

    said = ["retry: 1000\n\n", "event: point\ndata: 1\n\n", 'event: state\ndata: "ended"\n\n']
    assert in_own_loop(received()) == said


def test_who_comes_after_the_end_does_not_wait() -> None:
    async def received() -> list[str]:
        events = Events()
        events.close()
        return [text async for text in events.stream()]

    assert in_own_loop(asyncio.wait_for(received(), 60)) == ["retry: 1000\n\n"]
