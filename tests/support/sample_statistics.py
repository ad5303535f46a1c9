"""A week of statistics as the Spark job writes them, and Spark runs of every state, for the tests of API and page."""

from __future__ import annotations

import json
import math
import random
from datetime import datetime, timedelta
from typing import Any

from s3queue.documents.run_documents import Manifest, Slot
from s3queue.encoding import format_instant
from s3queue.keys import LATEST_STATISTICS
from support.workbench import Workbench

#: Messages per hour, and how slow they are.
QUEUES = {"orders": (900, 0.2), "emails": (240, 1.5), "exports": (6, 180.0)}


def week_of_statistics(bench: Workbench, computed_at: datetime) -> None:
    """Seven days until then: office hours are busy, and the mail server was away in one night."""
    chance = random.Random(3)
    end = computed_at.replace(minute=0, second=0, microsecond=0)
    queues = {
        name: _queue(name, [end - timedelta(hours=back) for back in range(167, -1, -1)], chance) for name in QUEUES
    }
    document = {
        "v": 1,
        "computed_at": format_instant(computed_at),
        "since": format_instant(end - timedelta(days=7)),
        "queues": queues,
    }
    bench.memory.put(LATEST_STATISTICS, json.dumps(document).encode())


def _queue(name: str, hours: list[datetime], chance: random.Random) -> dict[str, Any]:
    busy, slow = QUEUES[name]
    rows = [_hour(name, hour, busy, slow, chance) for hour in hours if name != "exports" or hour.hour % 3]
    sums = {field: sum(row[field] for row in rows) for field in ("messages", "objects", "completed", "dead")}
    return sums | {
        "hours": rows,
        "errors": [{"error_type": "SMTPServerDisconnected", "dead": sums["dead"], "failed_attempts": 3 * sums["dead"]}]
        if sums["dead"]
        else [],
        "busiest_workers": [{"worker": f"shop-{name}-0123456789ab-89abcdef", "messages": sums["messages"] // 3}],
    }


def _hour(name: str, hour: datetime, busy: int, slow: float, chance: random.Random) -> dict[str, Any]:
    share = 0.15 + max(0.0, math.sin((hour.hour - 6) / 12 * math.pi)) * chance.uniform(0.8, 1.2)
    messages = max(1, int(busy * share))
    dead = messages // 4 if name == "emails" and hour.hour in (2, 3) else 0
    wait, run = slow * chance.uniform(0.5, 1.5) * (8 if dead else 1), slow * chance.uniform(0.8, 1.1)
    percentiles = {
        f"{what}_{part}_seconds": round(value * factor, 3)
        for what, value in (("wait", wait), ("run", run))
        for part, factor in (("p50", 0.4), ("p95", 1.0), ("p99", 1.6))
    }
    return {
        "hour": format_instant(hour),
        "messages": messages,
        "objects": messages,
        "completed": messages - dead,
        "dead": dead,
        "attempts": messages + 3 * dead,
        "retried": dead,
        "workers": 1 + messages // 100,
        **percentiles,
    }


def spark_runs(bench: Workbench, queue: str = "exports") -> None:
    """A run that ended, one that failed, one that is silent, one at work with its slot, and a refused launch."""
    keys = bench.queue(queue).keys

    def manifest(name: str, ago: float, **more: Any) -> None:
        opened_at = bench.clock.now() - timedelta(seconds=ago)
        found = Manifest(run=f"run-{name}", slot=0, opened_at=opened_at, **more)
        bench.memory.put(keys.manifest(f"run-{name}"), found.to_bytes())

    manifest("silent", 7200, state="running", paths=("messages/lost",), started=1, rounds=2)
    bench.clock.advance(1800)
    manifest("ended", 3600, state="closed", counts={"completed": 412, "dead": 3}, rounds=4)
    manifest("broken", 2400, state="failed", note="MemoryError('the driver was killed')", counts={"completed": 2})
    paths = tuple(f"messages/export-{number:02d}" for number in range(30))
    manifest("at-work", 240, state="running", paths=paths, started=12, rounds=1, counts={"completed": 18})
    active = Slot(run="run-at-work", state="started", nonce="n", job="00fa1b2c3d")
    bench.memory.put(keys.slot(0), active.to_bytes())
    refused = Slot(
        run="run-x", state="cooling", nonce="n", reason="StartJobRun: ServiceQuotaExceededException: 16 vCPU"
    )
    bench.memory.put(keys.slot(1), refused.to_bytes())
