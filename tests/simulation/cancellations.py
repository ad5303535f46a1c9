"""What is judged of a message that is cancelled in the instant when its worker gives it back.  [P4]

A canceller takes no lease of a message that is at work: it records the outcome, and looks once more. Should the worker
give it back meanwhile, then whoever creates the next lease does not look for a record, and runs the message.
"""

from __future__ import annotations

from s3queue.protocol.claim import Claim

from .history import Call, History
from .ledger import Holding, Life
from .machines import Process
from .world import World


class Cancellations:
    """Who cancelled the messages of one queue, and what they had seen."""

    def __init__(self, world: World, leases: str, history: History) -> None:
        self._world = world
        self._leases = leases
        self._history = history
        #: Message → when its canceller saw the lease of its worker, and in which call.
        self._seen: dict[Life, tuple[float, Call | None]] = {}

    def recorded(self, process: Process, life: Life, sent_at: float) -> None:
        self._seen[life] = self._saw_lease(process, life.path, sent_at), self._history.asked(process, sent_at)

    def deleted(self, process: Process, life: Life | None, held: list[Holding]) -> None:
        """A message is about to go: perhaps its worker is done with it."""
        if life is None:
            return
        runs = [run for started in life.runs.values() for run in started if run.process is process]
        for one in held:
            is_its = one.process is process and one.claim.path == life.path and one.claim.is_alive()
            if is_its and any(run.attempt == one.claim.attempt for run in runs):
                self._history.finished.add(life)
                self._history.check_withdrawn(life)

    def _saw_lease(self, process: Process, path: str, sent_at: float) -> float:
        """When the canceller's last look at the lease, before it sent the record, showed one that is gone now. If there
        is none of the kind: now.
        """
        look = process.name, "get", self._leases + path
        if look[-1] not in self._world.objects:
            for at, *asked, what in reversed(self._world.trace):
                if (*asked,) == look and at <= sent_at and what in ("", "nothing there"):
                    return self._world.now if what else at
        return self._world.now

    def is_unknown(self, life: Life, claim: Claim, leased_at: float) -> bool:
        """Whether this claim cannot have known of the cancellation. Whoever takes a lease over looks for a record, and
        a canceller that had an answer has looked once more, and left nothing that could run.
        """
        if life not in self._seen or claim.attempt > 1:
            return False
        seen_at, call = self._seen[life]
        is_sure = call is not None and call.state == "ok" and call.answered_at < leased_at
        # What is given back after the record may be given back after that look, too.
        return life.given_back_at > (life.recorded_at if is_sure else seen_at)
