"""Processor: runs the handler on one claimed message and writes the outcome, in a function and in a pull worker."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import IO, Any, Literal, TypeVar

from s3queue.documents.batch import LongLine, check_lines, spooled
from s3queue.documents.lease import Lease
from s3queue.documents.message import INLINE_BYTES
from s3queue.documents.record import Failure, Record
from s3queue.documents.sends import MOST_PARTS, Send
from s3queue.encoding import LONGEST
from s3queue.errors import (
    Cancelled,
    InvalidRequest,
    LeaseLost,
    MessageNotFound,
    MessageTooLarge,
    NoSpace,
    Postpone,
    QueueError,
    Reject,
    Retry,
    Unavailable,
)
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
Line = bytes | LongLine
#: Lines that a handler of lists gets in one call.
LINES_PER_CALL = 100
#: A batch whose next line has to wait for the queue's limits longer than this is given back until then.
PATIENCE_SECONDS = 5.0


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
            return self._batch(claim) if claim.message.is_batch else self._single(claim)
        except (QueueError, Cancelled) as error:
            return partial(_raise, error)

    def conclude(self, claim: Claim, step: Step) -> AttemptEnding:
        """Write the outcome of a call."""
        ending = self._conclude(claim, step)
        if ending != "lost":
            self.queue.note_undecided(claim)  # unless a call was noted: cancelled, not readable, no line to run
        return ending

    def _conclude(self, claim: Claim, step: Step) -> AttemptEnding:
        try:
            try:
                return step()
            except Cancelled:
                # The operator recorded the outcome, and the message is this worker's: it deletes it.
                self._known(lambda: self.queue.clear(claim))
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
        return partial(self.end, claim, None, result=result, sends=sends)

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
            return self._known(lambda: self.queue.complete(claim, result, sends=sends, clear=self.clears)).outcome
        self.queue.leases.log_step("handler raised", claim, type(error).__name__)
        _check_ours(claim, error)
        if isinstance(error, Postpone):
            return self._postpone(claim, error.after)
        after = error.after if isinstance(error, Retry) else None
        return self._fail(claim, error, after=after, is_called=is_called)

    def _batch(self, claim: Claim) -> Step:
        from s3queue.documents.dead_lines import messages_of

        total = 0
        after: timedelta | None = None
        postponed: timedelta | None = None
        written = self.queue.clock.monotonic()
        started = False
        try:
            batch = self._spooled(claim)
        except (MessageNotFound, NoSpace) as error:
            return partial(self._fail, claim, error, after=None)
        except MessageTooLarge as error:
            return partial(self._fail, claim, error, after=None, dead=True)
        # Lines are read once, in order: of a batch that begins, each is pending.
        is_fresh = claim.lines.is_empty()
        longest = self.queue.settings.max_message_size
        with batch as stream:
            # No line is longer than its batch: most batches need no limit.
            lines = messages_of(claim.path, stream, longest if claim.message.size > longest else None)
            for chunk in self._chunks(lines):
                total += len(chunk)
                pending = chunk
                if not is_fresh:
                    pending = [entry for entry in chunk if claim.lines.is_pending(entry[0], claim.attempt)]
                    if not pending:
                        continue
                # At least one line runs, so that even the shortest invocation makes progress.
                if started and self.should_stop():
                    return partial(self._release, claim)
                if started and self.queue.gate and not self._is_permitted(claim):
                    return partial(self._postpone_lines, claim)
                if self.queue.clock.monotonic() - written > claim.lease.timeout.total_seconds() / 2:
                    self.queue.extend(claim)
                    written = self.queue.clock.monotonic()
                started = True
                claim.check_alive()
                asked = self._run_lines(claim, pending)
                if isinstance(asked, Postpone):
                    postponed = max(postponed or asked.after, asked.after)
                elif asked is not None:
                    after = max(after or asked, asked)
        if postponed is not None:
            return partial(self._postpone, claim, postponed)
        if claim.lines.failed:
            return partial(self._fail, claim, claim.lines.failure(total), after=after)
        return lambda: self._known(lambda: self.queue.complete_lines(claim, total, clear=self.clears)).outcome

    def _spooled(self, claim: Claim) -> IO[bytes]:
        """The batch in the temporary folder, if its size and its number of lines are within the limits."""
        settings = self.queue.settings
        if claim.message.size > settings.max_batch_size:
            raise MessageTooLarge(f"{claim.message.size} bytes, max_batch_size is {settings.max_batch_size}")
        if claim.message.inline is None:
            return spooled(claim.message.open(), max_lines=settings.max_batch_lines)
        check_lines(claim.message.inline.count(b"\n"), settings.max_batch_lines)
        return io.BytesIO(claim.message.inline)

    def _chunks(self, lines: Iterator[tuple[int, Line]]) -> Iterator[list[tuple[int, Line]]]:
        """As many lines as a handler gets in one call; long lists end early, so that few bytes are in memory."""
        most = LINES_PER_CALL if self.definition.takes_list else 1
        chunk: list[tuple[int, Line]] = []
        size = 0
        for number, line in lines:
            chunk.append((number, line))
            size += len(line) if isinstance(line, bytes) else 0
            if len(chunk) == most or size >= INLINE_BYTES:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

    def _is_permitted(self, claim: Claim) -> bool:
        """Whether the queue's limits let the handler be called for another line, after a short wait if need be."""
        until = self.queue.clock.monotonic() + PATIENCE_SECONDS
        while not self.queue.may_call(claim.path):
            wait = max(self.queue.gate.wait(claim.path) if self.queue.gate else 0.0, 0.1)
            left = min(until - self.queue.clock.monotonic(), claim.remaining().total_seconds() / 2)
            if wait > left or self.should_stop():
                return False
            self.queue.clock.sleep(wait)
        return True

    def _run_lines(self, claim: Claim, pending: list[tuple[int, Line]]) -> timedelta | Postpone | None:
        """Run some lines in one call and note how each ended; returns the delay that the handler asked for, if any.

        Lines that their handler postpones stay as they are.
        """
        parsed: list[tuple[int, Any]] = []
        parse = io.BytesIO if self.definition.takes_stream else self.definition.parse
        for number, line in pending:
            if isinstance(line, LongLine):
                said = f"line {number}: {line.size} bytes, max_message_size is {self.queue.settings.max_message_size}"
                claim.lines.fail(number, claim.attempt, Failure("MessageTooLarge", said), dead=True)
                continue
            try:
                parsed.append((number, parse(line)))
            except Reject as error:
                reason = Failure("Reject", f"line {number}: {error}")
                claim.lines.fail(number, claim.attempt, reason, dead=True)
        if not parsed:
            return None
        context = self.context(claim, line=0 if self.definition.takes_list else parsed[0][0])
        numbers = [number for number, _ in parsed]
        which = f"lines {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"line {numbers[0]}"
        self.queue.leases.log_step("handler started", claim, which)
        try:
            with self.around_call(claim, numbers), handling(context):
                if self.definition.takes_list:
                    self.definition.call([argument for _, argument in parsed], context)
                    results: list[Any] = []
                else:
                    results = [self.definition.call(parsed[0][1], context)]
            sends = self.sends_of(context, *results)
        except failures() as error:
            self.queue.leases.log_step("handler raised", claim, f"{which}: {type(error).__name__}")
            _check_ours(claim, error)
            if not isinstance(error, Postpone):
                self.queue.note_call(claim, error)
            if isinstance(error, Postpone) and claim.lease.postponed < self.queue.settings.max_postpones:
                return error
            self._fail_lines(claim, numbers, Failure.of(error), dead=isinstance(error, Reject))
            return error.after if isinstance(error, Retry) else None
        self.queue.leases.log_step("handler returned", claim, which)
        if self.definition.takes_list:
            claim.lines.complete_all(numbers)
        else:
            claim.lines.complete(numbers[0], results[0])
        if sends:
            self._known(lambda: self.queue.leases.make_room(claim, sends))
            claim.lines.sends.extend(sends)
            self._known(lambda: self.queue.leases.stage(claim))
        self.queue.note_call(claim, None)
        return None

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

    def time_out(self, claim: Claim, lines: Sequence[int], failure: Failure) -> AttemptEnding:
        """End an attempt whose handler does not return. The other lines of a batch go on, without these."""
        try:
            if not claim.message.is_batch:
                for companion in claim.companions:
                    self._fail(companion, failure, after=None, is_called=False)  # it was one call
                return self._fail(claim, failure, after=None)
            self._fail_lines(claim, lines, failure, dead=False)
            self.queue.note_call(claim, failure.type)
            return self._release(claim)
        except (LeaseLost, Unavailable):
            return "lost"

    def _fail_lines(self, claim: Claim, lines: Sequence[int], failure: Failure, *, dead: bool) -> None:
        dead = dead or not self.queue.settings.retry.can_retry(claim.attempt)
        for number in lines:
            claim.lines.fail(number, claim.attempt, failure, dead=dead)

    def _fail(
        self,
        claim: Claim,
        error: BaseException | Failure,
        *,
        after: timedelta | None,
        dead: bool = False,
        is_called: bool = True,
    ) -> AttemptEnding:
        # A handler may ask for any delay; no date can be reckoned from some of them.
        after = min(max(after, timedelta()), LONGEST) if after is not None else None
        # A handler that was not called says nothing to the breaker.
        fail = self.queue.fail if is_called else (claim.leases or self.queue.leases).fail
        ended: Lease | Record = self._known(lambda: fail(claim, error, retry_after=after, dead=dead))
        return "retried" if isinstance(ended, Lease) else ended.outcome

    def _postpone(self, claim: Claim, after: timedelta) -> AttemptEnding:
        wait = min(max(after, timedelta()), LONGEST)
        ended: Lease | Record = self._known(lambda: self.queue.postpone(claim, wait))
        if not isinstance(ended, Lease):
            return ended.outcome
        return "retried" if ended.failure and ended.failure.type == "Postpone" else "postponed"

    def _postpone_lines(self, claim: Claim) -> AttemptEnding:
        """The next lines have to wait for the queue's limits."""
        wait = max(self.queue.free_at(claim.path) - claim.now(), timedelta())
        self._known(lambda: self.queue.leases.postpone(claim, wait, is_asked=False))
        return "postponed"

    def _release(self, claim: Claim) -> AttemptEnding:
        self._known(lambda: self.queue.release(claim))
        return "released"

    def _known(self, step: Callable[[], T]) -> T:
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


def failures() -> tuple[type[BaseException], ...]:
    """What a handler may raise to fail its attempt. asyncio is not imported for that, because it is a tenth of a cold
    start: who raises its CancelledError has it.
    """
    cancelled = getattr(sys.modules.get("asyncio"), "CancelledError", SystemExit)
    return (Exception, SystemExit, cancelled)


def _raise(error: BaseException) -> AttemptEnding:
    raise error


def _check_ours(claim: Claim, error: BaseException) -> None:
    """Raises the error if it says that this claim is over. One of the handler's own locks is a failure like any.

    Whatever a handler raises once it was told that the message is cancelled is not a failure.
    """
    if isinstance(error, LeaseLost) and not claim.is_alive():
        raise error
    if claim.is_cancelled:
        raise Cancelled(f"{claim.message.queue}/{claim.path} was cancelled") from error
