"""The cast of one queue: makes its processes, their queues, and the handler that they run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from s3queue.errors import Postpone, Reject
from s3queue.settings import QueueSettings
from s3queue.sweeper.sweeper import SWEEP_REQUESTS
from s3queue.worker.context import Context
from s3queue.worker.definition import Definition
from s3queue.worker.inbox import Inbox
from s3queue.worker.processor import Processor

from .faults import Profile
from .judge import Judge
from .ledger import Run
from .machines import Process, ProcessClock
from .sends import send
from .watched import WatchedQueue
from .world import QUEUE, World

#: Paths that a pull worker's sweeper may leave for its threads.
INBOX_ROOM = 8


class HandlerFailed(Exception):
    """What the simulated handlers raise."""


class _Script(Definition):
    """The queue's definition. Every schedule has one, so what a handler looks like is found out once for all."""

    def __init__(self, name: str, settings: QueueSettings, handler: Callable[[bytes, Context], Any]) -> None:
        super().__init__(name, settings, sends_to=[name])
        self.function = handler


class Cast:
    """Makes processes and what they run."""

    def __init__(
        self, world: World, judge: Judge, settings: QueueSettings, profile: Profile, *, name: str = QUEUE
    ) -> None:
        self.world = world
        self.judge = judge
        self.settings = settings
        self.profile = profile
        self.name = name
        #: How often the sweeper had to end a lease or rescue a message.
        self.counts: Counter[str] = Counter()
        self.is_over = False
        #: Whether the functions are the real ones, which wait for their own retries, or plain processors.
        self.has_runners = False
        #: What the sweeper dispatches where there is no worker function: it is the pull worker that sweeps.
        self.inbox = Inbox(INBOX_ROOM)
        #: The latest sweeper; a crowded schedule kills it.
        self.sweeper: Process | None = None
        #: Called before each tick of a sweeper, and with what it dispatches; and the budget of its sweeps.
        self.on_tick: Callable[[], None] = lambda: None
        self.on_dispatch: Callable[[Sequence[str]], None] = lambda paths: None
        self.sweep_requests = SWEEP_REQUESTS
        self._numbers: Counter[str] = Counter()
        self.workers: dict[str, Process] = {}
        self.definition = _Script(name, settings, self._handle)

    def count(self, what: str) -> int:
        self._numbers[what] += 1
        return self._numbers[what]

    def process(self, role: str) -> Process:
        chance, profile = self.world.random, self.profile
        skew = chance.uniform(-profile.skew, profile.skew) if profile.skew else 0.0
        rate = 1.0 + chance.uniform(-profile.drift, profile.drift) if profile.drift else 1.0
        return Process(f"{role}-{self.count(role)}", skew=skew, started=chance.random() * 1000, rate=rate)

    def queue(self, process: Process) -> WatchedQueue:
        # A sweeper may be deployed later than the workers: whether a payload is kept, the record says.
        keeps = self.settings.keep_payload and not process.name.startswith("sweeper")
        queue = WatchedQueue(
            store=self.world.store,
            name=self.name,
            settings=replace(self.settings, keep_payload=keeps),
            worker_id=f"{process.name}-{self.world.chance.token()}",
            clock=ProcessClock(self.world, process),
            chance=self.world.chance,
        )
        self.workers[queue.worker_id] = process
        return queue.watch(self.judge, process)

    def processor(self, queue: WatchedQueue, **options: Any) -> Processor:
        return Processor(queue=queue, definition=self.definition, **options)

    def _handle(self, body: bytes, context: Context) -> Any:
        """Does what the message says: takes so long, extends or not, then succeeds, fails or rejects; some of it in a
        coroutine, which the library has to run.
        """
        script = json.loads(body)
        run = self.judge.start(self.workers[context.worker_id], context.claim, context.line)
        self.judge.members.started(context)
        try:
            self.world.sleep(script["takes"])
            if script.get("extends"):
                context.extend()
                self.world.sleep(script["takes"])
        finally:
            run.ended_at = self.world.now
        plan = script["plan"]
        step = plan[min(context.attempt, len(plan)) - 1]
        if "heals" in script and body in self.judge.history.replayed:
            step = script["heals"]
        # Also if it fails afterwards: then nothing of it may ever be stored.
        send(context, script)
        return self._end_later(run, step, script) if script.get("later") else self._end(run, step, script)

    async def _end_later(self, run: Run, step: str, script: dict[str, Any]) -> Any:
        return self._end(run, step, script)

    def _end(self, run: Run, step: str, script: dict[str, Any]) -> Any:
        if self.count(f"postponed {script['id']}") <= script.get("postpones", 0):
            run.ended = "postponed"
            raise Postpone("as scripted", after=1)
        if step == "r":
            run.ended = "rejected"
            raise Reject("as scripted")
        if step == "f":
            run.ended = "failed"
            raise HandlerFailed("as scripted")
        run.ended = "ok"
        return script["id"]
