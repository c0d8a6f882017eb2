"""The page, its data, events that are pushed to it, and optional controls.

The page is only for this machine. Host names other than the loopback's are rejected, so that no other site can reach it
under its own name (DNS rebinding). Requests that change something must come from the page itself. The page loads
nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from semistream.core.errors import SemistreamError
from semistream.dashboard.history import History

__all__ = ["Control", "Events", "application"]

_STATIC = Path(__file__).parent / "static"
_BEAT_SECONDS = 5.0
_MOST_WAITING = 256
"""Messages that may wait for one page, so that a page that no longer reads does not fill the memory."""
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'; "
        "base-uri 'none'; form-action 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Control:
    """A control with which the user changes the running demo.

    ``kind`` is ``button``, or ``range`` with ``least``, ``most``, ``step`` and ``value``. ``act`` is called with the
    value, or None for a button, and returns the message to show. If ``seconds`` is given, the control returns to its
    ``value`` after that time.
    """

    name: str
    label: str
    act: Callable[[float | None], str] = field(repr=False)
    hint: str = ""
    kind: str = "button"
    least: float = 0.0
    most: float = 1.0
    step: float = 0.1
    value: float = 0.0
    unit: str = ""
    seconds: float = 0.0

    def described(self) -> dict[str, Any]:
        """Return the description for the page: all fields except ``act``."""
        return {part.name: getattr(self, part.name) for part in fields(self) if part.name != "act"}


class Events:
    """Sends messages to all open pages, from any thread."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[str | None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def send(self, kind: str, value: Any) -> None:
        """Send a message to all pages."""
        self._spread(f"event: {kind}\ndata: {json.dumps(value)}\n\n")

    def close(self) -> None:
        """End all streams, so that the server does not wait for them."""
        self._closed = True
        self._spread(None)

    def _spread(self, text: str | None) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._put, text)

    def _put(self, text: str | None) -> None:
        for queue in list(self._queues):
            if queue.qsize() >= _MOST_WAITING:  # a page that was suspended: it connects again and loads what it missed
                self._queues.discard(queue)
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(None)
            else:
                queue.put_nowait(text)

    async def stream(self) -> AsyncIterator[str]:
        """Yield messages as they arrive; periodic comments detect whether the page is still open."""
        self._loop = asyncio.get_running_loop()
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        self._queues.add(queue)
        if self._closed:  # checked after the loop is set: a concurrent close either sees the loop, or is seen here
            queue.put_nowait(None)
        try:
            yield "retry: 1000\n\n"
            while True:  # until the end marker, not until closed: earlier messages are still sent
                try:
                    text = await asyncio.wait_for(queue.get(), _BEAT_SECONDS)
                except TimeoutError:
                    text = ": still here\n\n"
                if text is None:
                    return
                yield text
        finally:
            self._queues.discard(queue)


def application(
    title: str, history: History, events: Events, controls: Sequence[Control], extras: Mapping[str, Any]
) -> Starlette:
    """Return the web application; ``extras`` are further data of the page, such as query results of the demo."""
    by_name = {control.name: control for control in controls}
    moved: dict[str, float] = {}

    async def page(request: Request) -> Response:
        return FileResponse(_STATIC / "dashboard.html")

    async def data(request: Request) -> Response:
        return JSONResponse(
            {
                "title": title,
                "points": history.points(),
                "controls": [
                    control.described() | {"now": moved.get(control.name, control.value)} for control in controls
                ],
                "extras": dict(extras),
            }
        )

    async def pushed(request: Request) -> Response:
        return StreamingResponse(events.stream(), media_type="text/event-stream")

    async def act(request: Request) -> Response:
        control = by_name.get(request.path_params["name"])
        if control is None:
            return JSONResponse({"error": "there is no such control"}, 404)
        # Another site cannot send this header without a CORS preflight request, which is not answered.
        if request.headers.get("x-semistream") != "page":
            return JSONResponse({"error": "controls can only be used from the page"}, 403)
        try:
            value = _asked(control, await request.body())
            said = await run_in_threadpool(control.act, value)
        except ClientDisconnect:  # before it has sent all
            return Response(status_code=400)
        except (SemistreamError, ValueError, TypeError, OSError) as error:
            return JSONResponse({"error": str(error)}, 400)
        if value is not None and not control.seconds:
            moved[control.name] = value
        events.send("said", {"text": said, "name": control.name, "value": value})
        return JSONResponse({"said": said})

    return Starlette(
        routes=[
            Route("/", page),
            Route("/data", data),
            Route("/events", pushed),
            Route("/controls/{name}", act, methods=["POST"]),
            Mount("/static", StaticFiles(directory=_STATIC)),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"]),
            Middleware(_Headers),
        ],
    )


def _asked(control: Control, body: bytes) -> float | None:
    """Return the value in a request, None for a button; raise `ValueError` for any other body."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError('the body of the request is not a JSON object; send one, such as {"value": 1}')
    if control.kind == "button":
        return None
    value = found.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f'{control.label} needs a number; send one, such as {{"value": {control.value:g}}}')
    if not control.least <= value <= control.most:
        raise ValueError(f"{control.label} is between {control.least:g} and {control.most:g}, not {repr(value)[:20]}")
    return float(value)


class _Headers:
    """Adds headers to every response, including streams, which Starlette's own base class would buffer."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await self._app(scope, receive, with_headers)
