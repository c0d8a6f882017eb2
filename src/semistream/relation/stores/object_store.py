"""The operations of an object store that a relation needs: reads, range reads, puts, puts if absent, lists, deletes.

This is the seam between R and stores. `obstore` sends the requests and retries temporary failures. Credentials come
from the environment or the instance. They never appear in messages, files or pickles.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semistream.core.errors import MissingExtraError, StorageError, UnsupportedPathError

if TYPE_CHECKING:
    import obstore

__all__ = ["MAKERS", "SCHEMES", "ObjectStatus", "ObjectStore", "StoreUnavailableError", "open_store"]

SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az", "hdfs": "hdfs", "memory": "memory"}
"""Schemes of addresses, and the name of the store that each refers to."""
_PATIENCE = timedelta(seconds=60)
_PART_BYTES = 8 << 20  # bytes per part of an upload
_TIMEOUT = timedelta(seconds=30)
_SECRETS = re.compile(r"\?[^\s\"')]*|<[^>]*>?")
_NO_BUCKET = re.compile(r"NoSuchBucket|404 Not Found")
_FORBIDDEN = re.compile(r"40[13] (Forbidden|Unauthorized)")


class StoreUnavailableError(StorageError):
    """A store does not answer, or answers with errors, for longer than requests are retried."""


@dataclass(frozen=True)
class ObjectStatus:
    """The status of an object in a store, with the attribute names of ``os.stat_result``."""

    key: str
    st_size: int
    st_mtime: float
    mark: str
    """The store's own mark of the content: ETag or version."""
    st_mode: int = 0o100644

    @property
    def st_mtime_ns(self) -> int:
        """Time of the last change."""
        return int(self.st_mtime * 1e9)

    @property
    def identity(self) -> str:
        """A text that identifies this content among all contents of the key."""
        return f"{self.mark or self.st_mtime_ns} {self.st_size}"


class ObjectStore:
    """A bucket or container, opened by `open_store`.

    Every call sends one request or a few, and waits for the reply. A missing object raises `FileNotFoundError`; every
    other failure raises `StorageError`.
    """

    at_once = 10
    """Ranges that one call of `read_ranges` requests concurrently, which is the limit of `obstore`."""

    def __init__(self, address: str, client: Any) -> None:
        self.address = address
        """Scheme and bucket."""
        self._client = client
        self._conditional: bool | None = None

    def read(self, key: str) -> bytes:
        """Return an object."""
        with self._told(key, "read"):
            return bytes(_obstore().get(self._client, key).bytes())

    def read_range(self, key: str, start: int, length: int) -> memoryview:
        """Return a range of an object; it is shorter if the object ends before."""
        with self._told(key, "read"):
            return memoryview(_obstore().get_range(self._client, key, start=start, length=length))

    def read_ranges(self, key: str, starts: Sequence[int], lengths: Sequence[int]) -> list[memoryview]:
        """Return ranges of an object, one request each. This needs far less CPU time than single calls."""
        with self._told(key, "read"):
            found = _obstore().get_ranges(self._client, key, starts=starts, lengths=lengths, coalesce=0)
            return [memoryview(one) for one in found]

    def status(self, key: str) -> ObjectStatus:
        """Return the status of an object."""
        with self._told(key, "read"):
            return _status(_obstore().head(self._client, key))

    def entries(self, prefix: str) -> tuple[list[ObjectStatus], list[str]]:
        """Return the objects directly below a prefix, and the prefixes below it."""
        with self._told(prefix, "listed"):
            found = _obstore().list_with_delimiter(self._client, prefix or None)
        return [_status(one) for one in found["objects"]], list(found["common_prefixes"])

    def below(self, prefix: str) -> list[ObjectStatus]:
        """Return all objects below a prefix, at any depth."""
        with self._told(prefix, "listed"):
            listed = _obstore().list(self._client, prefix or None, chunk_size=1000)
            return [_status(one) for part in listed for one in part]

    def put(self, key: str, content: bytes | memoryview) -> None:
        """Write an object, replacing any object of that key."""
        with self._told(key, "written"):
            _obstore().put(self._client, key, content, chunk_size=_PART_BYTES, mode="overwrite")

    def put_if_absent(self, key: str, content: bytes) -> bool:
        """Write an object unless its key is taken; return whether it is ours. An object of equal content is ours.

        A reply can get lost and the request be sent again. Then the existing object is our own.
        """
        try:
            with self._told(key, "written"):
                _obstore().put(self._client, key, content, mode="create", use_multipart=False)
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                return self.read(key) == content
            return False
        except StoreUnavailableError:
            with contextlib.suppress(FileNotFoundError):
                return self.read(key) == content
            raise
        return True

    def upload(self, key: str, file: Path) -> None:
        """Write a file as an object, in many parts concurrently."""
        with self._told(key, "written"):
            _obstore().put(self._client, key, file, chunk_size=_PART_BYTES)

    def delete(self, key: str) -> None:
        """Remove an object. A missing object is not an error."""
        with contextlib.suppress(FileNotFoundError), self._told(key, "removed"):
            _obstore().delete(self._client, key)

    def remove_unfinished(self, prefix: str, before: float) -> list[str]:
        """Remove unfinished objects below a prefix that were started before a time; return their keys.

        In most stores unfinished objects are invisible, and rules of the bucket remove them.
        """
        return []

    def require_conditional(self, prefix: str) -> None:
        """Raise unless objects below ``prefix`` can be written and put if absent. Tested once per process."""
        if self._conditional:
            return
        probe = f"{prefix}/.probe-{os.urandom(8).hex()}"
        try:
            refused = self.put_if_absent(probe, b"1") and not self.put_if_absent(probe, b"2")
        finally:
            with contextlib.suppress(StorageError):
                self.delete(probe)
        if not refused:
            raise StorageError(
                f"{self.address} overwrites an object that was to be written only if absent, so two writers could both "
                "commit; use a store with conditional puts (If-None-Match), such as S3, GCS, Azure or a recent MinIO"
            )
        self._conditional = True

    @contextlib.contextmanager
    def _told(self, key: str, done: str) -> Iterator[None]:
        """Turn an error of the store into an error with a remedy, without secrets."""
        from obstore import exceptions

        try:
            yield
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error) or done in ("listed", "written"):
                raise self._no_bucket(key) from None
            raise FileNotFoundError(errno.ENOENT, "no such object", self._place(key)) from None
        except exceptions.AlreadyExistsError:
            raise FileExistsError(errno.EEXIST, "the object already exists", self._place(key)) from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise self._forbidden(key, done, error) from None
        except exceptions.NotSupportedError as error:
            raise StorageError(
                f"{self._place(key)} could not be {done}: the store cannot do it ({_said(error)}); use one with "
                "conditional puts", number=errno.EOPNOTSUPP, path=self._place(key),
            ) from None  # fmt: skip
        except exceptions.BaseError as error:
            if _NO_BUCKET.search(str(error)):  # a failed list has no error class of its own
                raise self._no_bucket(key) from None
            if _FORBIDDEN.search(str(error)):
                raise self._forbidden(key, done, error) from None
            raise StoreUnavailableError(
                f"{self._place(key)} could not be {done}, even after retries: {_said(error)}; check that the store "
                "can be reached from here, and the endpoint, region and credentials in the environment",
                number=errno.EIO, path=self._place(key),
            ) from None  # fmt: skip

    def _no_bucket(self, key: str) -> StorageError:
        return StorageError(
            f"{self.address} does not exist: no such bucket; create it, or correct the address",
            number=errno.ENOENT, path=self._place(key),
        )  # fmt: skip

    def _forbidden(self, key: str, done: str, error: Exception) -> StorageError:
        return StorageError(
            f"{self._place(key)} could not be {done}: the store does not permit it ({_said(error)}); give this "
            "process credentials that permit it (environment variables, or the role of the instance)",
            number=errno.EACCES, path=self._place(key),
        )  # fmt: skip

    def _place(self, key: str) -> str:
        return f"{self.address}/{key}"

    def __repr__(self) -> str:
        return f"ObjectStore({self.address})"


MAKERS: dict[str, Callable[[str], ObjectStore]] = {}
"""Functions that open stores which `obstore` does not support, by name."""
_opened: dict[str, ObjectStore] = {}
_opening = threading.Lock()


def _forget() -> None:
    global _opening
    _opening = threading.Lock()
    for address in [address for address in _opened if not address.startswith("memory:")]:
        del _opened[address]


os.register_at_fork(after_in_child=_forget)  # connections belong to the parent


def open_store(scheme: str, bucket: str) -> ObjectStore:
    """Return a store, the same object for the same address. No request is sent yet."""
    kind = SCHEMES.get(scheme.lower())
    address = f"{kind}://{bucket}"
    if kind is None:
        raise UnsupportedPathError(f"{scheme}:// is not a supported store; the stores are {', '.join(SCHEMES)}")
    with _opening:
        if address not in _opened:
            own = MAKERS.get(kind)
            _opened[address] = ObjectStore(address, _client(kind, bucket)) if own is None else own(bucket)
        return _opened[address]


def _client(kind: str, bucket: str) -> Any:
    store = _obstore().store
    if kind == "memory":
        return store.MemoryStore()
    more: dict[str, Any] = {}
    if kind == "s3" and os.environ.get("AWS_ENDPOINT_URL", os.environ.get("AWS_ENDPOINT", "")).startswith("http://"):
        more["allow_http"] = True  # an explicit http:// address is intended
    try:
        return store.from_url(
            f"{kind}://{bucket}", client_options={"timeout": _TIMEOUT, **more},
            retry_config={"retry_timeout": _PATIENCE, "max_retries": 12},
        )  # fmt: skip
    except Exception as error:
        raise StorageError(
            f"{kind}://{bucket} cannot be opened: {_said(error)}; check the store's environment variables"
        ) from None


def _obstore() -> Any:
    try:
        import obstore
        import obstore.store
    except ImportError:
        raise MissingExtraError("obstore", "store") from None
    return obstore


def _status(found: obstore.ObjectMeta) -> ObjectStatus:
    mark = found.get("version") or found.get("e_tag") or ""
    return ObjectStatus(found["path"], found["size"], found["last_modified"].timestamp(), mark)


def _said(error: Exception) -> str:
    """Return the first line of a store's message, without XML and without queries, which may contain signatures."""
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return _SECRETS.sub("", first)[:300]
