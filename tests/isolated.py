"""Tasks in a child process: one that crashes, or never ends, is a failure like any other, and this process goes on."""

from __future__ import annotations

import math
import os
import pickle
import resource
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Failed", "first_failure"]

_PATIENCE = 20


@dataclass(frozen=True)
class Failed:
    """Which task failed, and why."""

    task: int
    message: str
    at: int | None
    """How far it came, if the error had an attribute of that name."""


def first_failure(tasks: Sequence[Callable[[], object]], seconds: float) -> Failed | None:
    """Run tasks one after the other in one child; return the first that fails, or nothing.

    ``seconds`` are of the processor, whatever else the machine does; of the clock it may take many times as long.
    """
    reading, writing = os.pipe()
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds) + 5))
            code = _work(tasks, writing)
        finally:
            os._exit(code)
    os.close(writing)
    status, killed = None, False
    while status is None:
        done, ended = os.waitpid(pid, os.WNOHANG)
        if done:
            status = ended
        elif not killed and time.monotonic() - began > _PATIENCE * seconds:
            os.kill(pid, signal.SIGKILL)
            killed = True
        else:
            time.sleep(0.002)
    last: Any = (0, "", None)
    with open(reading, "rb") as pipe:
        while True:
            try:
                last = pickle.load(pipe)
            except EOFError:
                break
    if status == 0:
        return None
    number, message, at = last
    if killed or status & 127 == signal.SIGXCPU:
        message = f"not ended after {seconds:.0f} s"
    elif not message:
        message = f"the process ended by signal {status & 127}, exit code {status >> 8}"
    return Failed(number, message, at)


def _work(tasks: Sequence[Callable[[], object]], writing: int) -> int:
    # A pipe holds 64 KiB, and the parent reads it only at the end: few messages, and short ones.
    with open(writing, "wb", buffering=0) as pipe:
        for number, task in enumerate(tasks):
            pipe.write(pickle.dumps((number, "", None)))
            try:
                task()
            except BaseException as error:
                trace = "".join(traceback.format_exception(error)[-9:])
                text = f"{type(error).__name__}: {error}"[:2000] + "\n" + trace[-9000:]
                pipe.write(pickle.dumps((number, text, getattr(error, "at", None))))
                return 2
    return 0
