"""Processor: runs the handler on one claimed message and writes the outcome, in a function and in a pull worker."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Literal, TypeVar

from s3queue.documents.lease import Lease
from s3queue.documents.record import Failure, Record
from s3queue.documents.sends import MOST_PARTS, Send
from s3queue.encoding import LONGEST, returned
from s3queue.errors import Cancelled, InvalidRequest, LeaseLost, Postpone, QueueError, Retry, Unavailable
from s3queue.paths import partition_of
from s3queue.protocol.claim import Claim
from s3queue.queue import Queue

from .context import Context
from .definition import Definition
from .spans import handling
from .unknown import until_known

_log = logging.getLogger(__name__)
#: `lost`: someone else has the message by now, or its outcome is unknown; the sweeper takes care of it.
AttemptEnding = Literal["completed", "retried", "dead", "cancelled", "released", "postponed", "lost"]
#: Writes how an attempt ended.
Step = Callable[[], AttemptEnding]
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Processor:
    """Runs the handler of one queue."""

    queue: Queue
    definition: Definition
    #: Checked between the lines of a batch; if it returns True, the remaining lines are given back.
    should_stop: Callable[[], bool] = lambda: False
    #: How `Context.extend` keeps a message; by default it writes the lease.
    renew: Callable[[Claim, timedelta | None], None] | None = None
    #: False: the caller deletes completed messages, as `Claim.is_recorded` says.
    clears: bool = True
    #: Entered for every call of the handler, with the lines of a batch that the call is for. If it raises LeaseLost,
    #: what the handler returned is dropped: the claim is another thread's by then.
    around_call: Callable[[Claim, Sequence[int]], AbstractContextManager[None]] = lambda claim, lines: nullcontext()

    def run(self, path: str, *, read_first: bool = False, etag: str = "") -> AttemptEnding | None:
        """Claim and process one message; None if it could not be claimed. A name that was PUT anew runs again.

        A message of a partition comes with the others of its partition; the last one's ending is returned.
        """
        ending: AttemptEnding | None = None
        if partition := partition_of(path):
            from .partition_run import run_partition

            endings: list[AttemptEnding] = []
            run_partition(self, partition, should_stop=self.should_stop, count=endings.append)
            return endings[-1] if endings else None
        claim = self.queue.claim(path, read_first=read_first, etag=etag)
        while claim is not None:
            ending = self.process(claim)
            claim = self.claim_again(claim)
        return ending

    def claim_again(self, claim: Claim) -> Claim | None:
        """The next generation, if the name was PUT anew while the last one was at work: nobody else is told of that."""
        # Nothing has told which PUT it is by now, so ask: the lease must name it before anything can go wrong.
        return self.queue.claim(claim.path, read_first=True) if claim.superseded and not self.should_stop() else None

    def process(self, claim: Claim) -> AttemptEnding:
        """Run the handler and write the outcome. Errors of a handler or of a message are never raised from here."""
        return self.conclude(claim, self.call(claim))

    def call(self, claim: Claim) -> Step:
        """Run the handler; what it returns writes the outcome, in any thread: it is for `conclude`."""
        try:
            claim.check_alive()
            self.queue.events.emit(
                "message.processing",
                queue=self.queue.name,
                path=claim.path,
                attempt=claim.attempt,
                worker=claim.lease.owner,
                max_attempts=self.queue.settings.max_attempts,
                size=claim.message.size,
            )
            if not claim.message.is_batch:
                return self._single(claim)
            from .batch_run import BatchRun

            return BatchRun(self, claim).run()
        except (QueueError, Cancelled) as error:
            return partial(_raise, error)

    def conclude(self, claim: Claim, step: Step) -> AttemptEnding:
        """Write the outcome of a call."""
        ending = self._conclude(claim, step)
        self.queue.note_undecided(claim)  # unless a call was noted: cancelled, lost, not readable, no line to run
        return ending

    def _conclude(self, claim: Claim, step: Step) -> AttemptEnding:
        try:
            try:
                return step()
            except Cancelled:
                # The operator recorded the outcome, and the message is this worker's: it deletes it.
                self.known(lambda: self.queue.clear(claim))
                self.queue.leases.emit("message.cancelled", claim, outcome="cancelled")
                return "cancelled"
        except (LeaseLost, Unavailable):
            return "lost"
        except QueueError as error:
            # A missing permission, or a record of a newer version: the message is not to blame, and its lease runs out.
            _log.error("outcome not written, lease will run out: %s/%s: %s", self.queue.name, claim.path, error)
            return "lost"

    def _single(self, claim: Claim) -> Step:
        is_called = False
        try:
            argument = self.definition.argument(claim.message, self.queue.settings)
            # No handler starts after the lease is over: reading the payload may have taken long.  [P4]
            claim.check_alive()
            context = self.context(claim)
            self.queue.leases.log_step("handler started", claim)
            is_called = True
            with self.around_call(claim, ()), handling(context):
                result = self.definition.call(argument, context)
            sends = self.sends_of(context, result)
        except failures() as error:
            return partial(self.end, claim, error, is_called=is_called)
        # Not later: the thread may run its next message while the outcome of this one is written.
        return partial(self.end, claim, None, result=returned(result), sends=sends)

    def end(
        self,
        claim: Claim,
        error: BaseException | None,
        *,
        result: Any = None,
        sends: Sequence[Send] = (),
        is_called: bool = True,
    ) -> AttemptEnding:
        """Write how the call of the handler ended for a single message: what it raised, or returned and sent."""
        if error is None:
            self.queue.leases.log_step("handler returned", claim)
            step = partial(self.queue.complete, claim, result, sends=sends, clear=self.clears)
            return self._ended(claim, None, step).outcome
        self.queue.leases.log_step("handler raised", claim, type(error).__name__)
        check_ours(claim, error)
        if isinstance(error, Postpone):
            return self.postpone(claim, error.after)
        after = error.after if isinstance(error, Retry) else None
        return self.fail(claim, error, after=after, is_called=is_called)

    def sends_of(self, context: Context, *results: Any) -> list[Send]:
        """What one successful call has sent: its own sends, and its results if the definition passes them on.

        Raises:
            InvalidRequest: they are too many or too large; the call has failed.
        """
        target = self.definition.results_to
        if target:
            for result in results:
                if result is not None:
                    context.send(target, result)
        if context.sends:
            from s3queue.documents.sent_objects import check_sends

            check_sends(context.sends, of_batch=context.claim.message.is_batch)
            if len(context.claim.lines.outbox) > MOST_PARTS - 2:
                raise InvalidRequest(f"the lines of one batch have sent {MOST_PARTS} parts: use smaller batches")
        return context.sends

    def time_out(self, claim: Claim, lines: Sequence[int], failure: Failure) -> list[AttemptEnding]:
        """End an attempt whose handler does not return: how it ended, and then those of its companions. The other lines
        of a batch go on, without these.
        """
        try:
            if not claim.message.is_batch:
                # It was one call.
                others = [self.fail(one, failure, after=None, is_called=False) for one in claim.companions]
                return [self.fail(claim, failure, after=None), *others]
            from .batch_run import fail_lines

            fail_lines(self.queue, claim, lines, failure)
            self.queue.note_call(claim, failure.type)
            return [self.release(claim)]
        except (LeaseLost, Unavailable):
            return lost(claim)

    def fail(
        self,
        claim: Claim,
        error: BaseException | Failure,
        *,
        after: timedelta | None,
        dead: bool = False,
        is_called: bool = True,
    ) -> AttemptEnding:
        """The attempt has failed: the message waits for its next one, or is dead."""
        # A handler may ask for any delay; no date can be reckoned from some of them.
        after = min(max(after, timedelta()), LONGEST) if after is not None else None
        # A handler that was not called says nothing to the breaker.
        fail = self.queue.fail if is_called else (claim.leases or self.queue.leases).fail
        step = partial(fail, claim, error, retry_after=after, dead=dead)
        is_told = is_called and not claim.message.is_batch
        ended: Lease | Record = self._ended(claim, error, step) if is_told else self.known(step)
        return "retried" if isinstance(ended, Lease) else ended.outcome

    def _ended(self, claim: Claim, error: BaseException | Failure | None, step: Callable[[], T]) -> T:
        """What the step returns, which writes the outcome. The breaker is told how the call ended also if that fails:
        all others wait for a probe, and the handler has said what they want to know.
        """
        try:
            return self.known(step)
        except QueueError:
            self.queue.note_call(claim, error.type if isinstance(error, Failure) else error)
            raise

    def postpone(self, claim: Claim, after: timedelta) -> AttemptEnding:
        """The handler has asked for a later time; that costs no attempt."""
        wait = min(max(after, timedelta()), LONGEST)
        ended: Lease | Record = self.known(lambda: self.queue.postpone(claim, wait))
        if not isinstance(ended, Lease):
            return ended.outcome
        return "retried" if ended.failure and ended.failure.type == "Postpone" else "postponed"

    def release(self, claim: Claim) -> AttemptEnding:
        """Give the message back at once; that costs no attempt."""
        self.known(lambda: self.queue.release(claim))
        return "released"

    def known(self, step: Callable[[], T]) -> T:
        """What the step returns, tried again while its outcome is unknown."""
        return until_known(self.queue, step)

    def context(self, claim: Claim, line: int = 0) -> Context:
        renew = self.renew or self.queue.extend
        return Context(
            claim=claim,
            max_attempts=self.queue.settings.max_attempts,
            renew=renew,
            line=line,
            sends_to=self.definition.sends_to,
            flows=self.definition.flows,
            takes_list=self.definition.takes_list,
            look=self.queue.check,
            store=self.queue.store,
        )


def lost(claim: Claim) -> list[AttemptEnding]:
    """How a call ended whose outcome nobody can write: for its message, and for each of its companions."""
    return ["lost"] * (1 + len(claim.companions))


def failures() -> tuple[type[BaseException], ...]:
    """What a handler may raise to fail its attempt. asyncio is not imported for that, because it is a tenth of a cold
    start: who raises its CancelledError has it.
    """
    cancelled = getattr(sys.modules.get("asyncio"), "CancelledError", SystemExit)
    return (Exception, SystemExit, cancelled)


def _raise(error: BaseException) -> AttemptEnding:
    raise error


def check_ours(claim: Claim, error: BaseException) -> None:
    """Raises the error if it says that this claim is over. One of the handler's own locks is a failure like any.

    Whatever a handler raises once it was told that the message is cancelled is not a failure.
    """
    if isinstance(error, LeaseLost) and not claim.is_alive():
        raise error
    if claim.is_cancelled:
        raise Cancelled(f"{claim.message.queue}/{claim.path} was cancelled") from error
