"""PostgreSQL and Redis for one machine: started for one process, and certain to end with it.

Both listen on 127.0.0.1 only, each on a free port and behind a random password. Any command can be started with the
same certainty through `Guarded`.
"""

from __future__ import annotations

from taskbridge.common.libraries import explained_imports

with explained_imports():
    from taskbridge.embedded.guarded import Guarded
    from taskbridge.embedded.servers import Servers, held, running, serve

__all__ = ["Guarded", "Servers", "held", "running", "serve"]
