"""What is measured every 30 seconds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from statistics import quantiles
from typing import Any, Final

import psutil
import psycopg
import redis

from verification.soak.ledger import OVERDUE, Ledger

__all__ = ["BY_DESIGN", "Sampler"]

BY_DESIGN: Final = ("audit", "received", "run_minutes", "runs", "sync_cursors")
"""Tables that grow during any soak, because they are kept for days or for good; `runs` with all of its partitions."""

TABLES: Final = """\
SELECT CASE WHEN relname LIKE 'runs%' THEN 'runs' ELSE relname END AS name,
    sum(n_live_tup)::bigint, sum(n_dead_tup)::bigint,
    sum(pg_table_size(relid))::bigint, sum(pg_indexes_size(relid))::bigint
FROM pg_stat_user_tables WHERE schemaname = 'taskbridge' GROUP BY name
"""
CATALOG: Final = """\
SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r'
"""
FIRST_EVENTS: Final = """\
SELECT first_event_ms FROM taskbridge.runs
WHERE ended_at > now() - make_interval(secs => %s) AND first_event_ms IS NOT NULL AND pipeline <> 'alerts'
"""


class Sampler:
    """Measures processes, servers and the ledger."""

    def __init__(self, postgres_url: str, redis_url: str, ledger: Ledger) -> None:
        self._connection = psycopg.connect(postgres_url, autocommit=True)
        self._postmaster = psutil.Process(self._scalar("SELECT pg_backend_pid()")).parent()
        self._redis = redis.Redis.from_url(redis_url, decode_responses=True)
        self._ledger = ledger
        self._began = self._last = time.monotonic()
        self._cpu: dict[int, float] = {}

    def close(self) -> None:
        self._connection.close()
        self._redis.close()

    def sample(self, processes: Mapping[str, int]) -> dict[str, Any]:
        """Return one sample; `processes` are the workers and the receiver by name."""
        now = time.monotonic()
        window, self._last = now - self._last, now
        found: dict[str, Any] = {"minute": (self._last - self._began) / 60, "cpu": self._cpu_share(window)}
        for name, pid in processes.items():
            with suppress(psutil.NoSuchProcess):  # it is being restarted
                main = psutil.Process(pid)
                found[f"{name} main MB"], found[f"{name} fds"] = main.memory_info().rss / 1e6, main.num_fds()
                found[f"{name} threads"] = main.num_threads()
                if children := main.children(recursive=True):
                    found[f"{name} pool MB"] = sum(child.memory_info().rss for child in children) / 1e6
                    found[f"{name} pool fds"] = sum(child.num_fds() for child in children)
        delays = self._ledger.read()
        found |= self._postgres(window) | self._in_redis()
        found |= {f"sql {name}": value for name, value in _percentiles(1000 * delay for delay in delays).items()}
        found |= {"sent": self._ledger.sent, "delivered": self._ledger.delivered, "doubled": self._ledger.doubled}
        found |= {"repeated": self._ledger.repeated, "goods": self._ledger.goods}
        return found | {"overdue": len(self._ledger.missing(OVERDUE))}

    def _postgres(self, window: float) -> dict[str, Any]:
        found: dict[str, Any] = {
            "sessions": self._scalar("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"),
            "pending": self._scalar("SELECT count(*) FROM taskbridge.record_states WHERE state = 'pending'"),
            "quarantined": self._scalar("SELECT count(*) FROM taskbridge.record_states WHERE state = 'quarantined'"),
            "taken": self._scalar("SELECT coalesce(sum(taken), 0)::bigint FROM soak_totals"),
            "records": self._scalar("SELECT count(*) FROM taskbridge.records"),
            "postgres MB": self._postgres_uss() / 1e6,
            "catalog MB": self._scalar(CATALOG) / 1e6,
            "tables": {name: figures for name, *figures in self._connection.execute(TABLES)},
        }
        first = self._connection.execute(FIRST_EVENTS, (window,)).fetchall()
        found |= {f"first {name}": value for name, value in _percentiles(ms for (ms,) in first).items()}
        kept = [figures for name, figures in found["tables"].items() if name not in BY_DESIGN]
        found["dead"] = sum(figures[1] for figures in kept)
        found["heap MB"], found["index MB"] = (sum(figures[column] for figures in kept) / 1e6 for column in (2, 3))
        return found

    def _postgres_uss(self) -> int:
        """Return the memory that each process of Postgres has for itself, without the shared buffers."""
        total = 0
        for process in self._postmaster.children() if self._postmaster else []:
            with suppress(psutil.NoSuchProcess):
                total += process.memory_full_info().uss
        return total

    def _scalar(self, statement: str) -> Any:
        ((value,),) = self._connection.execute(statement)
        return value

    def _in_redis(self) -> dict[str, Any]:
        info: Any = self._redis.info()
        return {
            "redis clients": info["connected_clients"],
            "redis keys": self._redis.dbsize(),
            "redis MB": info["used_memory"] / 1e6,
        }

    def _cpu_share(self, window: float) -> float:
        """Return the share of one core that this process and all below it took since the last sample."""
        now: dict[int, float] = {}
        ours = psutil.Process()
        for process in (ours, *ours.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                now[process.pid] = sum(process.cpu_times()[:2])
        used = sum(seconds - self._cpu.get(pid, 0.0) for pid, seconds in now.items())
        is_first, self._cpu = not self._cpu, now
        return 0.0 if is_first else used / window


def _percentiles(values: Iterable[float]) -> dict[str, float]:
    """Return p50 and p99; nothing without values."""
    values = sorted(values)
    if len(values) < 2:
        return {}
    hundredths = quantiles(values, n=100, method="inclusive")
    return {"p50": hundredths[49], "p99": hundredths[98]}
