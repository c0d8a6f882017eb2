"""A small server that speaks as much of S3 as a relation needs, in this process, and fails when it is told to.

Only for what no real server does on demand: answers that are late, wrong, missing or refused. That a real one is spoken
to rightly is shown with s3proxy (`tests/relation/stores/test_real_server.py`).
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

import pytest

__all__ = ["S3Server", "s3"]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512  # or connections are refused for a second, and longer


class S3Server:
    """Objects of one bucket, and how requests for them are answered."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, float, str]] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        self.requests: list[tuple[str, str]] = []
        self.bytes_sent = 0
        self.delay = 0.0
        """Seconds before each answer."""
        self.fault: Callable[[str, str], int | None] | None = None
        """Says with which status a request (method, key) fails; 0 hangs up, and -1 does what is asked, and hangs up."""
        self.conditional = True
        """False: an object is written over whatever the request says."""
        self.forbidden: str | None = None
        """Methods that are refused, such as "PUT POST"."""
        self.http = _Server(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    def calm(self) -> None:
        """Answer as one should."""
        self.delay, self.fault, self.conditional, self.forbidden = 0.0, None, True, None

    def put(self, key: str, content: bytes) -> str:
        mark = f'"{hashlib.md5(content).hexdigest()}"'
        self.objects[key] = content, time.time(), mark
        return mark

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


def _handler(server: S3Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            pass

        silent = False

        def _answer(self, status: int, content: bytes = b"", **headers: str) -> None:
            if self.silent:
                return
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            length = headers.get("Content_Length")
            if length is None:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)
                server.bytes_sent += len(content)

        def _error(self, status: int, code: str) -> None:
            self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

        def _serve(self) -> None:
            where = urlsplit(self.path)
            bucket, _, key = unquote(where.path).lstrip("/").partition("/")
            query = {name: values[0] for name, values in parse_qs(where.query, keep_blank_values=True).items()}
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            server.requests.append((self.command, key))
            if server.delay:
                time.sleep(server.delay)
            if server.fault is not None and (status := server.fault(self.command, key)) is not None:
                if status < 0:
                    with server.lock:
                        self.silent = True
                        getattr(self, f"_{self.command.lower()}")(key, query, body)
                if status <= 0:
                    self.close_connection = True
                else:
                    self._error(status, "SlowDown")
            elif server.forbidden is not None and self.command in server.forbidden:
                self._error(403, "AccessDenied")
            elif bucket != "bucket":
                self._error(404, "NoSuchBucket")
            else:
                with server.lock:
                    getattr(self, f"_{self.command.lower()}")(key, query, body)

        do_GET = do_HEAD = do_PUT = do_POST = _serve

        def _get(self, key: str, query: dict[str, str], _: bytes) -> None:
            if "list-type" in query:
                self._list(query)
                return
            if key not in server.objects:
                self._error(404, "NoSuchKey")
                return
            content, written, mark = server.objects[key]
            about = {"ETag": mark, "Last_Modified": formatdate(written, usegmt=True)}
            span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if span is None:
                self._answer(200, content, **about)
                return
            start, end = int(span[1]), min(int(span[2] or len(content)), len(content) - 1)
            self._answer(
                206, content[start : end + 1], Content_Range=f"bytes {start}-{end}/{len(content)}", **about
            )  # fmt: skip

        def _head(self, key: str, *_: object) -> None:
            if key not in server.objects:
                self._answer(404)
                return
            content, written, mark = server.objects[key]
            self._answer(
                200, Content_Length=str(len(content)), ETag=mark, Last_Modified=formatdate(written, usegmt=True)
            )

        def _list(self, query: dict[str, str]) -> None:
            prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
            listed, prefixes = [], set()
            for key in sorted(server.objects):
                if not key.startswith(prefix):
                    continue
                rest = key[len(prefix) :]
                if delimiter and delimiter in rest:
                    prefixes.add(prefix + rest.partition(delimiter)[0] + delimiter)
                    continue
                content, written, mark = server.objects[key]
                at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(written)) + f".{int(written * 1000) % 1000:03d}Z"
                listed.append(
                    f"<Contents><Key>{escape(key)}</Key><LastModified>{at}</LastModified><ETag>{escape(mark)}</ETag>"
                    f"<Size>{len(content)}</Size></Contents>"
                )
            below = "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in prefixes)
            self._answer(
                200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(listed)}{below}"
                "</ListBucketResult>".encode(),
            )  # fmt: skip

        def _put(self, key: str, query: dict[str, str], body: bytes) -> None:
            if "uploadId" in query:
                server.parts[query["uploadId"]][int(query["partNumber"])] = body
                self._answer(200, ETag=f'"{hashlib.md5(body).hexdigest()}"')
            elif self.headers.get("If-None-Match") == "*" and key in server.objects and server.conditional:
                self._error(412, "PreconditionFailed")
            else:
                self._answer(200, ETag=server.put(key, body))

        def _post(self, key: str, query: dict[str, str], body: bytes) -> None:
            if "delete" in query:
                names = re.findall(r"<Key>(.*?)</Key>", body.decode())
                for name in names:
                    server.objects.pop(unescape(name), None)
                done = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
                self._answer(200, f"<DeleteResult>{done}</DeleteResult>".encode())
                return
            if "uploads" in query:
                name = f"upload-{len(server.parts)}"
                server.parts[name] = {}
                self._answer(
                    200, f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId>"
                    "</InitiateMultipartUploadResult>".encode(),
                )  # fmt: skip
                return
            parts = server.parts.pop(query["uploadId"])
            mark = server.put(key, b"".join(parts[number] for number in sorted(parts)))
            self._answer(
                200, f"<CompleteMultipartUploadResult><ETag>{escape(mark)}</ETag>"
                "</CompleteMultipartUploadResult>".encode(),
            )  # fmt: skip

    return Handler


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """An empty server, to which ``s3://bucket/…`` leads in this process and those that it starts."""
    from semistream.relation.stores import object_store

    server = S3Server()
    for name, value in {
        "AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "very-secret-word",
        "AWS_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    object_store._opened.clear()
    yield server
    object_store._opened.clear()
    server.close()
