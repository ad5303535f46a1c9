"""The messages of a run, and what their handlers do: each body says what is to become of it."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

from s3queue import Context, Reject

from .history import Json, tell

#: Fates that end in a dead letter.
DEADLY = ("poison", "rejected")


def body(id: str, chance: random.Random, typical: float, hangs: float) -> Json:
    """A message. Most are fine; some fail first or always, some hang (for `hangs` seconds), some kill their process."""
    kind = chance.random()
    told: Json = {"id": id, "fate": "fine", "failures": 0, "seconds": round(chance.uniform(0.0, 2 * typical), 3)}
    if kind < 0.04:
        return told | {"fate": "poison"}
    if kind < 0.07:
        return told | {"fate": "rejected"}
    if kind < 0.15:
        return told | {"failures": chance.choice([1, 2])}
    if kind < 0.165:
        return told | {"fate": "hangs once", "hangs": hangs}
    if kind < 0.18:
        return told | {"fate": "crashes once"}
    if kind < 0.21:
        return told | {"fate": "extends", "seconds": 2.0}
    return told


def handle(body: dict, context: Context) -> str:  # type: ignore[type-arg]
    """The handler of every queue of a run."""
    generation = context.claim.message.generation
    run: dict[str, Any] = {
        "queue": context.queue,
        "id": body["id"],
        "path": context.path,
        "line": context.line,
        "attempt": context.attempt,
        "fence": context.fence,
        "generation": [generation.etag, generation.put_at.isoformat()],
    }
    tell("start", **run)
    if context.attempt == 1 and body["fate"] == "crashes once":
        time.sleep(body["seconds"] / 2)
        tell("crashes", **run)
        os.kill(os.getpid(), signal.SIGKILL)
    if context.attempt == 1 and body["fate"] == "hangs once":
        time.sleep(body["hangs"])
    if body["fate"] == "extends":
        for _ in range(4):
            time.sleep(body["seconds"] / 4)
            context.extend()
    else:
        time.sleep(body["seconds"])
    if body["fate"] == "poison":
        tell("raised", **run)
        raise ValueError("poison")
    if body["fate"] == "rejected":
        tell("raised", **run)
        raise Reject("refused")
    if context.attempt <= body["failures"]:
        tell("raised", **run)
        raise RuntimeError("not yet")
    tell("returned", **run)
    return str(body["id"])
