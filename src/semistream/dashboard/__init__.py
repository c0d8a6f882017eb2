"""A live page of running queries, on the loopback address; nothing is fetched from the network.

=============  ===================================================================
`history`      numbers of each micro-batch; a small file keeps them across restarts
`web`          the page, its data, events pushed to it, and optional controls
`server`       serves the web application in a thread
=============  ===================================================================
"""

from semistream.core.errors import MissingExtraError

try:
    import starlette as _starlette  # noqa: F401
    import uvicorn as _uvicorn  # noqa: F401
except ImportError as _error:
    raise MissingExtraError(_error.name or "starlette", "dashboard") from None

from semistream.dashboard.history import History
from semistream.dashboard.server import Dashboard
from semistream.dashboard.web import Control

__all__ = ["Control", "Dashboard", "History"]
