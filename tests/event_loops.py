"""Runs coroutines in tests: in a thread of their own, as a browser may run an event loop in the thread of the tests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def in_own_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
