"""Supervisor: keeps what a worker holds, gives up handlers that hang, and follows the settings of `queue.json`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial

from s3queue.documents.record import Failure
from s3queue.errors import QueueError
from s3queue.protocol.claim import Claim
from s3queue.protocol.liveness import HeartbeatWriter, keep_beating
from s3queue.queue import Queue

from .crew import Crew
from .definition import Definition
from .processor import AttemptEnding, Processor, lost
from .renewal import renew_held
from .watchdog import Call, Watchdog

_log = logging.getLogger(__name__)
#: The longest time between two looks at running handlers and at the settings; these are read every ten seconds at most.
LOOK_SECONDS = 1.0


class Supervisor:
    """Looks after the threads of one worker, in two threads of its own."""

    def __init__(
        self,
        queue: Queue,
        definition: Definition,
        heartbeat: HeartbeatWriter,
        crew: Crew,
        *,
        is_stopping: Callable[[], bool],
        ended: Callable[[Claim, Sequence[AttemptEnding]], None],
        observe: Callable[[float], None],
    ) -> None:
        """`ended` is called, in another thread, after the attempt of a handler that was given up, with how it ended and
        then how those of its companions did; `observe` with the seconds that each call of the handler took.
        """
        self._queue = queue
        self._watchdog = Watchdog(queue, observe)
        self._heartbeat = heartbeat
        self._crew = crew
        self._is_stopping = is_stopping
        self._ended = ended
        #: What the worker's threads run.
        self.processor = Processor(
            queue=queue,
            definition=definition,
            should_stop=is_stopping,
            renew=self._renew,
            clears=False,
            around_call=self._watchdog.watch,
        )

    def keep_alive(self, stats: Callable[[], Mapping[str, int]], sleep: Callable[[float], None]) -> None:
        """The heartbeat keeps the held messages, so this thread does nothing else, and it ends after the handlers."""
        keep_beating(
            self._heartbeat,
            lambda: self._heartbeat.beat(stats()),
            self._is_over,
            sleep,
        )

    def _is_over(self) -> bool:
        # A thread that has just claimed a message, and does not hold it yet, is about to call its handler.
        return self._is_stopping() and not len(self._crew) and not len(self._heartbeat)

    def supervise(self, follow: Callable[[], None], sleep: Callable[[float], None]) -> None:
        """Look after handlers and settings, until the last handler has ended or was given up."""
        while not self._is_stopping():
            self.look(follow)
            sleep(self._pause())
        while len(self._crew):
            self.look()
            self._crew.wait(self._pause())
        self._heartbeat.changed.set()  # its thread waits for the last one of the crew

    def look(self, follow: Callable[[], None] | None = None) -> None:
        """Give up what hangs. Then read the settings, if it is time, and let `follow` act upon them."""
        try:
            self._watchdog.check(self._queue.clock.monotonic(), self._give_up)
            if follow:
                self.refresh()
                follow()
        except Exception:
            _log.exception("unexpected error in the supervising thread, continuing: %s", self._queue.name)

    def _pause(self) -> float:
        return min(LOOK_SECONDS, self._queue.settings.handler_timeout.total_seconds() / 2)

    def refresh(self) -> None:
        try:
            self._queue.refresh()
        except QueueError as error:
            _log.warning("queue.json not read, settings kept: %s: %s", self._queue.name, error)

    def _renew(self, claim: Claim, timeout: timedelta | None) -> None:
        self._watchdog.touch(claim)
        renew_held(self._queue, claim, timeout)

    def _give_up(self, call: Call) -> None:
        """Let another thread fail the attempt and take the place of the thread that hangs, whose result is dropped."""
        stack = call.stack()
        failure = call.failure(self._queue.settings.handler_timeout.total_seconds(), stack)
        function = self.processor.definition.function
        _log.error(
            "handler given up, its thread replaced: %s: %s/%s, attempt %d: %s\n%s",
            getattr(function, "__qualname__", repr(function)),
            self._queue.name,
            call.claim.path,
            call.claim.attempt,
            failure.message,
            "".join(stack.format()),
        )
        claim = self._heartbeat.take_over(call.claim)
        try:
            self._crew.replace(call.thread, partial(self._let_go, claim, call.lines, failure))
        except RuntimeError as error:
            # No thread can be started now. The heartbeat must not keep the message; `follow` starts the thread later.
            _log.error("thread not started, lease will run out: %s/%s: %s", self._queue.name, claim.path, error)
            self._heartbeat.drop(claim)
            self._ended(claim, lost(claim))

    def _let_go(self, claim: Claim, lines: Sequence[int], failure: Failure) -> None:
        endings = lost(claim)
        try:
            endings = self.processor.time_out(claim, lines, failure)
        except Exception as error:
            _log.error("failure not written, lease will run out: %s/%s: %s", self._queue.name, claim.path, error)
        finally:
            self._heartbeat.drop(claim)
            self._ended(claim, endings)
