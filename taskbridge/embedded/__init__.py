"""PostgreSQL and Redis for a single machine, started by one process and guaranteed to end with it.

Both listen only on 127.0.0.1, on a free port, with a random password. `Guarded` gives any other command the same
guarantee.
"""

from __future__ import annotations

from taskbridge.common.libraries import explained_imports

with explained_imports():
    from taskbridge.embedded.guarded import Guarded
    from taskbridge.embedded.servers import Servers, held, running, serve

__all__ = ["Guarded", "Servers", "held", "running", "serve"]
