"""Serves the live page in a thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn

from semistream.dashboard.history import History
from semistream.dashboard.web import Control, Events, application
from semistream.spark.monitoring.listening import BatchReport
from semistream.spark.monitoring.prometheus import PortTakenError

__all__ = ["Dashboard"]

_LOOPBACK = "127.0.0.1"


class Dashboard(BatchReport):
    """A live page on the loopback address; use it as a report of a `StatisticsListener`.

    Parameters
    ----------
    title
        Title of the page.
    port
        The port; 0 uses any free port, which is then in `url`.
    history
        A file that keeps micro-batches across restarts, next to the checkpoint.
    controls
        Controls of the page.
    query
        Name of the query to show; None shows all queries of the session as one.

    Examples
    --------
    >>> page = Dashboard("sales", port=0)                                    # doctest: +SKIP
    >>> spark.streams.addListener(StatisticsListener([page]))                # doctest: +SKIP
    >>> print(page.url)                                                      # doctest: +SKIP
    http://127.0.0.1:40231
    """

    def __init__(
        self,
        title: str,
        port: int = 0,
        *,
        history: Path | None = None,
        controls: Sequence[Control] = (),
        query: str | None = None,
    ) -> None:
        self._query = query
        self.history = History(history)
        self._extras: dict[str, Any] = {}
        self._events = Events()
        self.history.watch(lambda point: self._events.send("point", point))
        self._socket = _bound(port)
        self.url = f"http://{_LOOPBACK}:{self._socket.getsockname()[1]}"
        app = application(title, self.history, self._events, controls, self._extras)
        settings = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=2)
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="semistream-dashboard", daemon=True
        )
        self._thread.start()

    def add(self, batch: Mapping[str, Any]) -> None:
        if self._query is None or batch["query"] == self._query:
            self.history.add(batch)

    def tell(self, kind: str, value: Any) -> None:
        """Send data other than micro-batches to the page: ``state``, ``ratio`` or ``answers``."""
        self._extras[kind] = value
        self._events.send(kind, value)

    def close(self) -> None:
        self.tell("state", "ended")
        self._events.close()
        self._server.should_exit = True
        self._thread.join(5)
        self._socket.close()


def _bound(port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((_LOOPBACK, port))
        found.listen()  # a request before the server's thread has started waits instead of being refused
    except (OSError, OverflowError) as error:
        found.close()
        raise PortTakenError(
            f"port {port} of the loopback address cannot be used for the page: {error}; give another port, or 0 for "
            "any free port"
        ) from None
    return found
