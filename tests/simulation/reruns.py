"""An operator of the schedules who runs completed messages again."""

from __future__ import annotations

from s3queue.errors import QueueError, Unavailable

from .cast import Cast


def rerunning(cast: Cast, at: float) -> None:
    """Replays whatever is completed at that time, and repeats what has no answer, also when it has run by then."""
    process = cast.process("operator")

    def run() -> None:
        queue = cast.queue(process)
        try:
            page = queue.store.list(queue.keys.prefix("records"))
            paths = [path for entry in page.objects if (path := queue.keys.path_under("records", entry.key))]
            seen = [record for path in paths if (record := queue.outcomes.read(path)) and record.outcome == "completed"]
        except QueueError:
            return
        for record in seen:
            for pause in (0.1, 2.0, 6.0):
                try:
                    queue.replay(record.path, of=record)
                except Unavailable:
                    pass
                except QueueError:
                    break
                # Whoever is not sure asks again.
                cast.world.sleep(pause)

    cast.world.spawn(process, run, after=at)
