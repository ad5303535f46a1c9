"""own_queue: a queue as one worker uses it, in a name that no other worker has.  [P2]"""

from __future__ import annotations

from dataclasses import replace

from s3queue.queue import Queue


def own_queue(queue: Queue) -> Queue:
    """The queue for one more worker: itself for the first one, the same with another worker's id for all others.

    A lease names its owner, whose heartbeat names what it holds. If two workers wrote one heartbeat, each would leave
    out what the other holds, and the sweeper would give that to a third one.
    """
    if queue.identity.acquire(blocking=False):
        return queue
    other = replace(queue, worker_id=queue.new_worker_id(), settings=queue.defined)
    other.settings = queue.settings
    return other
