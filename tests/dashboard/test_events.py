"""Messages to pages: all that was said before the end is sent, whatever a page was being sent then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("starlette")

from event_loops import in_own_loop
from semistream.dashboard.history import History
from semistream.dashboard.web import _MOST_WAITING, Control, Events, application


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


def test_a_page_that_does_not_read_is_sent_away_and_may_come_back() -> None:
    async def received() -> tuple[list[str], list[str]]:
        events = Events()
        suspended, other = events.stream(), events.stream()
        assert [await anext(one) for one in (suspended, other)] == ["retry: 1000\n\n"] * 2
        waiting = asyncio.ensure_future(anext(suspended))
        await asyncio.sleep(0)
        for number in range(2 * _MOST_WAITING + 5):
            events.send("point", number)
            await asyncio.sleep(0)
            if number:
                await anext(other)  # this page reads
            else:
                await waiting
        queues = [queue.qsize() for queue in events._queues]
        assert sum(queues) <= 1
        again = events.stream()
        await anext(again)
        events.close()
        return [text async for text in suspended], [text async for text in again]

    assert in_own_loop(asyncio.wait_for(received(), 60)) == ([], [])


def test_a_request_that_is_broken_off_is_no_error() -> None:
    control = Control("stop", "Stop", lambda _: "stopped")
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"x-semistream", b"page"), (b"content-length", b"9")]
    scope = {"type": "http", "method": "POST", "path": "/controls/stop", "headers": headers, "query_string": b""}
    app = application("sales", History(None), Events(), [control], {})
    in_own_loop(app(scope, receive, send))
    assert sent[0]["status"] == 400
