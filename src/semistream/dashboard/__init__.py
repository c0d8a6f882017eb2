"""A live page of running queries: on the loopback address, with nothing fetched from the network.

=============  ===================================================================
`history`      what each micro-batch was like, kept over restarts in a small file
`web`          the page, its data and events pushed to it, and controls if there are any
`server`       the web application served in a thread beside the query
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
