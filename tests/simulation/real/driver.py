"""The driver of a Spark run, as a process: `python -m simulation.real.driver PLACE RUN`.

Everything of a run but the session: spark/drain.py with a `per_message` job that needs none, so that no JVM starts.
"""

from __future__ import annotations

import json
import signal
import sys
import threading

from simulation.real.history import tell
from simulation.real.place import HEAVY, Place


def main(arguments: list[str]) -> int:
    place, run = Place(**json.loads(arguments[0])), arguments[1]
    place.enter("driver", HEAVY)
    import queues
    from queues import heavy  # type: ignore[attr-defined]
    from spark.heavy.driver import Driver
    from spark.heavy.messages import MessageWork
    from spark.heavy.run_manifest import NotOurs, RunLost

    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.set())
    queue = place.queue(HEAVY, worker_id=run)
    queue.refresh()
    queues.load_one(HEAVY).events.pass_on(queue.events)
    work = MessageWork(queue, heavy.per_message, None, parallel=queue.settings.concurrency)
    tell("drives", run=run)
    try:
        Driver(queue, work, seconds=60.0, should_stop=stopping.is_set).drain()
    except NotOurs as error:
        tell("not ours", run=run, error=str(error))
    except RunLost as error:
        tell("run lost", run=run, error=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
