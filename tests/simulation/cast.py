"""The cast of one queue: makes its processes, their queues, and the handler that they run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from s3queue.errors import Postpone, Reject
from s3queue.queue import Queue
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
from .started_flows import start
from .watched import WatchedQueue
from .world import QUEUE, World

#: Paths that a pull worker's sweeper may leave for its threads.
INBOX_ROOM = 8


class HandlerFailed(Exception):
    """What the simulated handlers raise."""


class _Script(Definition):
    """The queue's definition. Every schedule has one, so what a handler looks like is found out once for all."""

    def __init__(
        self,
        name: str,
        settings: QueueSettings,
        handler: Callable[[bytes, Context], Any],
        handler_of_lists: Callable[[list[bytes], Context], Any],
        sends_to: Sequence[str],
    ) -> None:
        super().__init__(name, settings, sends_to=[*sends_to], flows=True)
        self.takes_list = bool(settings.collect)
        self.function = handler_of_lists if self.takes_list else handler


class Cast:
    """Makes processes and what they run."""

    def __init__(
        self,
        world: World,
        judge: Judge,
        settings: QueueSettings,
        profile: Profile,
        *,
        name: str = QUEUE,
        sends_to: Sequence[str] = (),
    ) -> None:
        self.world = world
        self.judge = judge
        self.settings = settings
        self.profile = profile
        self.name = name
        self._sends_to = sends_to or (name,)
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
        #: What a new sweeper watches the Spark runs of the queue with, if it has some.
        self.check_runs: Callable[[], Callable[[Queue], int]] | None = None
        self._numbers: Counter[str] = Counter()
        self.workers: dict[str, Process] = {}
        self.define(settings)

    def define(self, settings: QueueSettings) -> None:
        """The definition that processes are made with from now on."""
        self.settings = settings
        self.definition = _Script(self.name, settings, self._handle, self._handle_list, self._sends_to)

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

    def handle(self, body: bytes, context: Context) -> Any:
        """What the queue's handler does, for a job that is none."""
        return self._handle(body, context)

    def end(self, run: Run, body: bytes, script: dict[str, Any], attempt: int) -> Any:
        """How a message of a query ends, which is no call of a handler: its result, or what is raised."""
        return self._end(run, self._step(body, script, attempt), script)

    def _handle(self, body: bytes, context: Context) -> Any:
        """Does what the message says: takes so long, extends or not, then succeeds, fails or rejects; some of it in a
        coroutine, which the library has to run.
        """
        script = json.loads(body)
        run = self.judge.start(self.workers[context.worker_id], context.claim, context.line)
        self.judge.members.started(context)
        try:
            if script.get("asks"):
                context.extend(script["asks"])
            self.world.sleep(script["takes"])
            if script.get("extends"):
                context.extend()
                self.world.sleep(script["takes"])
        finally:
            run.ended_at = self.world.now
        step = self._step(body, script, context.attempt)
        # Also if it fails afterwards: then nothing of it may ever be stored.
        send(context, script, self.definition)
        start(context, script, self.world)
        return self._end_later(run, step, script) if script.get("later") else self._end(run, step, script)

    def _step(self, body: bytes, script: dict[str, Any], attempt: int) -> str:
        if "heals" in script and body in self.judge.history.replayed:
            return str(script["heals"])
        plan = script["plan"]
        return str(plan[min(attempt, len(plan)) - 1])

    def _handle_list(self, bodies: list[bytes], context: Context) -> Any:
        """Does what each of them says, in one call; a script may let all of them fail with it.

        What is sent goes with the first one that is completed: that one's sends.
        """
        scripts, claims = [json.loads(body) for body in bodies], [context.claim, *context.claim.companions]
        runs = [self.judge.start(self.workers[context.worker_id], claim, 0) for claim in claims]
        if len(bodies) > self.settings.collect:
            self.judge.broken("unexpected", f"{len(bodies)} messages in one call, collect is {self.settings.collect}")
        try:
            self.world.sleep(max(script["takes"] for script in scripts))
            if any(script.get("extends") for script in scripts):
                context.extend()
                self.world.sleep(scripts[0]["takes"])
        finally:
            for run in runs:
                run.ended_at = self.world.now
        steps = [self._step(*one) for one in zip(bodies, scripts, (claim.attempt for claim in claims), strict=True)]
        results = [self._entry(*one) for one in zip(runs, steps, scripts, strict=True)]
        done = [place for place, result in enumerate(results) if not isinstance(result, Exception)]
        sender = done[0] if done else 0
        send(context, scripts[sender], self.definition, claims[sender])
        for place in done[1:]:
            runs[place].is_silent = True
        if not context.claim.within:
            return _raised(results[0])
        if any(script.get("raises") and step == "f" for script, step in zip(scripts, steps, strict=True)):
            for run in runs:
                run.ended = "failed"
            raise HandlerFailed("as scripted, all of them")
        return results

    def _entry(self, run: Run, step: str, script: dict[str, Any]) -> Any:
        try:
            return self._end(run, step, script)
        except (Postpone, Reject, HandlerFailed) as error:
            return error

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


def _raised(result: Any) -> Any:
    """One that is alone in its call, and has a lease of its own, fails by what its handler raises."""
    if isinstance(result, Exception):
        raise result
    return result
