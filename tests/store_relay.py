"""A relay before a real store, in this process: requests wait, fail or are told, as a test wants it."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["StoreRelay"]


class StoreRelay:
    """Passes requests on to a store; signatures stay right, as the name of the host is passed on too."""

    def __init__(self, store: str) -> None:
        self.store = urlsplit(store)
        self.fault: Callable[[str], int | None] | None = None
        """Says with which status a request, such as ``GET /bucket/r/x``, fails."""
        self.delay = 0.0
        """Seconds that every request waits."""
        self.requests = 0
        self._most: int | None = None
        self._wanted: Callable[[str], bool] | None = None
        self._go_on = threading.Event()
        self._held = 0
        self._change = threading.Condition()
        self.http = _Server(("127.0.0.1", 0), _handler(self))
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    @contextmanager
    def holding(
        self, wanted: Callable[[str], bool], count: int, *, most: int | None = None, seconds: float = 600.0
    ) -> Iterator[None]:
        """Let requests of a kind, or the first of them, wait while the block lasts, which begins when ``count`` do."""
        self._held, self._most = 0, most
        self._go_on.clear()
        self._wanted = wanted
        try:
            with self._change:
                assert self._change.wait_for(lambda: self._held >= count, seconds), f"{self._held} of {count} came"
            yield
        finally:
            self._wanted = None
            self._go_on.set()

    def close(self) -> None:
        self._go_on.set()
        self.http.shutdown()
        self.http.server_close()

    def passes(self, request: str) -> int | None:
        """Wait if this request must; return the status with which it fails, if it does."""
        self.requests += 1
        time.sleep(self.delay)
        if self._wanted is not None and self._wanted(request):
            with self._change:
                held = self._most is None or self._held < self._most
                self._held += held
                self._change.notify_all()
            if held:
                self._go_on.wait()
        return None if self.fault is None else self.fault(request)


class _Server(ThreadingHTTPServer):
    request_queue_size = 512  # or connections are refused for a second, and longer

    def handle_error(self, *_: object) -> None:
        pass  # processes that ask are killed


def _handler(relay: StoreRelay) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            pass

        def _relay(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with suppress(ConnectionError):  # of a process that was killed meanwhile
                if (status := relay.passes(f"{self.command} {self.path}")) is not None:
                    self.send_response(status)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self._pass_on(body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _relay

        def _pass_on(self, body: bytes) -> None:
            connection = http.client.HTTPConnection(relay.store.hostname or "", relay.store.port, timeout=60)
            try:
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    connection.putheader(name, value)
                connection.endheaders(body)
                answer = connection.getresponse()
                content = answer.read()
                self.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                length = answer.getheader("Content-Length") if self.command == "HEAD" else None
                self.send_header("Content-Length", length or str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            finally:
                connection.close()

    return Handler
