"""A store that only serves: files below a directory as objects of a bucket, each answer late by some time.

For measurements, ``range_server.py FOLDER SECONDS``: one thread, no copies, so that what is measured is who asks; it
answers thousands of requests a second, of which each takes it some 30 us. Keys are paths below FOLDER, whatever the
bucket is called, and nothing can be put: for ``semistream bench store s3://bucket/bench --dir CACHE``, FOLDER/bench is
a link to CACHE, where R was built before.
"""

from __future__ import annotations

import os
import re
import select
import socket
import sys
import time
from collections import deque
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

__all__ = ["RangeServer"]

_HEAD = re.compile(rb"(GET|HEAD) /[^/? ]*/?([^? ]*)\??(\S*) HTTP/1.1\r\n")
_RANGE = re.compile(rb"\r\nrange: *bytes=(\d+)-(\d*)", re.IGNORECASE)


Answer = list[Any]
"""Bytes; then file, start and length of what follows them."""
_NOTHING = 0, 0, 0


class _Connection:
    def __init__(self, opened: socket.socket) -> None:
        self.socket, self.descriptor = opened, opened.fileno()
        self.asked = b""
        self.answers: deque[Answer] = deque()


class RangeServer:
    """Serves the files below a folder, each answer ``delay`` seconds late."""

    def __init__(self, folder: Path, delay: float) -> None:
        self.folder, self.delay = folder, delay
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self._files: dict[str, tuple[int, int, bytes]] = {}

    def serve(self) -> None:
        """Answer until somebody ends it."""
        poll = select.epoll()
        self.socket.setblocking(False)
        poll.register(self.socket, select.EPOLLIN)
        connections: dict[int, _Connection] = {}
        late: deque[tuple[float, _Connection, Answer]] = deque()

        def write(one: _Connection) -> None:
            try:
                while one.answers:
                    answer = one.answers[0]
                    if answer[0]:
                        more = socket.MSG_MORE if answer[3] else 0
                        done = one.socket.send(answer[0], more)
                        answer[0] = answer[0][done:]
                    elif answer[3]:
                        done = os.sendfile(one.descriptor, answer[1], answer[2], answer[3])
                        answer[2] += done
                        answer[3] -= done
                    else:
                        one.answers.popleft()
            except BlockingIOError:
                poll.modify(one.descriptor, select.EPOLLIN | select.EPOLLOUT)
            except OSError:
                pass

        while True:
            wait = -1 if not late else max(0.0, late[0][0] - time.monotonic())
            for number, event in poll.poll(wait):
                if number == self.socket.fileno():
                    opened, _ = self.socket.accept()
                    opened.setblocking(False)
                    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    connections[opened.fileno()] = _Connection(opened)
                    poll.register(opened, select.EPOLLIN)
                    continue
                one = connections[number]
                if event & select.EPOLLOUT:
                    poll.modify(number, select.EPOLLIN)
                    write(one)
                if not event & ~select.EPOLLOUT:
                    continue
                try:
                    asked = one.socket.recv(1 << 16)
                except OSError:
                    asked = b""
                if not asked:
                    poll.unregister(number)
                    connections.pop(number).socket.close()
                    continue
                one.asked += asked
                while (end := one.asked.find(b"\r\n\r\n")) >= 0:
                    late.append((time.monotonic() + self.delay, one, self._answer(one.asked[: end + 4])))
                    one.asked = one.asked[end + 4 :]
            now = time.monotonic()
            while late and late[0][0] <= now:
                _, one, answer = late.popleft()
                one.answers.append(answer)
                if len(one.answers) == 1:
                    write(one)

    def _answer(self, asked: bytes) -> Answer:
        found = _HEAD.match(asked)
        if found is None:
            return [b"HTTP/1.1 501 No\r\nContent-Length: 0\r\n\r\n", *_NOTHING]
        key = unquote(found[2].decode())
        if b"list-type" in found[3]:
            return [self._listed(found[3].decode()), *_NOTHING]
        known = self._files.get(key)
        if known is None:
            file = self.folder / key
            if not file.is_file():
                body = b"<Error><Code>NoSuchKey</Code></Error>"
                said = body if found[1] == b"GET" else b""
                return [b"HTTP/1.1 404 No\r\nContent-Length: %d\r\n\r\n%s" % (len(body), said), *_NOTHING]
            status = file.stat()
            told = f'ETag: "{status.st_mtime_ns}"\r\nLast-Modified: {formatdate(status.st_mtime, usegmt=True)}\r\n'
            known = self._files[key] = os.open(file, os.O_RDONLY), status.st_size, told.encode()
        descriptor, size, about = known
        if found[1] == b"HEAD":
            return [b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n" % (about, size), *_NOTHING]
        span = _RANGE.search(asked)
        if span is None:
            return [b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n" % (about, size), descriptor, 0, size]
        first = int(span[1])
        last = min(int(span[2] or size), size - 1)
        head = b"HTTP/1.1 206 OK\r\n%sContent-Range: bytes %d-%d/%d\r\nContent-Length: %d\r\n\r\n"
        return [head % (about, first, last, size, last - first + 1), descriptor, first, last - first + 1]

    def _listed(self, query: str) -> bytes:
        asked = {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
        prefix, listed, prefixes = asked.get("prefix", ""), [], set()
        found = [Path(above, name) for above, _, names in os.walk(self.folder, followlinks=True) for name in names]
        for file in sorted(found):
            key = file.relative_to(self.folder).as_posix()
            if not key.startswith(prefix):
                continue
            rest = key[len(prefix) :]
            if "delimiter" in asked and "/" in rest:
                prefixes.add(prefix + rest.partition("/")[0] + "/")
                continue
            status = file.stat()
            at = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(status.st_mtime))
            listed.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{at}</LastModified>"
                f"<ETag>&quot;{status.st_mtime_ns}&quot;</ETag><Size>{status.st_size}</Size></Contents>"
            )
        below = "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(prefixes))
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(listed)}{below}</ListBucketResult>".encode()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


if __name__ == "__main__":
    server = RangeServer(Path(sys.argv[1]), float(sys.argv[2]))
    print(server.url, flush=True)
    server.serve()
