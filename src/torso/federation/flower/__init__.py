"""The transport of a real federation: Flower's deployment runtime behind the interfaces of `federation.transport`.

Flower's SuperLink and SuperNode run as separate processes and only carry messages. The server and the clients are
Torso's own processes. No code is sent: nothing of a Flower app bundle is installed or run."""

from __future__ import annotations

import os
from importlib.util import find_spec

from torso.errors import RequestError

if find_spec("flwr") is None:
    raise RequestError(
        "A federation needs Flower, which is not installed. Install it with `pip install 'torso[flower]'`."
    )

# Flower reads these when it is imported: no telemetry, no update check, no output on the user's terminal
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
os.environ.update(QUIET)
os.environ.setdefault("FLWR_LOG_LEVEL", "CRITICAL")
_HERE = "127.0.0.1,localhost,::1"  # never connected to through a proxy
if _HERE not in os.environ.get("NO_PROXY", ""):
    os.environ["NO_PROXY"] = ",".join(filter(None, (os.environ.get("NO_PROXY"), _HERE)))
