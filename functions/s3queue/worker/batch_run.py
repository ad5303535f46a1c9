"""BatchRun: runs the handler on the lines of one claimed batch, as far as the time, the limits and the lease allow."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import IO, Any

from s3queue.documents.batch import LongLine, check_lines, most_bytes, most_lines, spooled
from s3queue.documents.dead_lines import messages_of
from s3queue.documents.message import INLINE_BYTES
from s3queue.documents.record import Failure
from s3queue.errors import MessageNotFound, MessageTooLarge, NoSpace, Postpone, Reject, Retry
from s3queue.protocol.claim import Claim
from s3queue.queue import Queue

from .processor import AttemptEnding, Processor, Step, check_ours, failures
from .spans import handling

Line = bytes | LongLine
#: Lines that a handler of lists gets in one call.
LINES_PER_CALL = 100
#: A batch whose next line has to wait for the queue's limits longer than this is given back until then.
PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class BatchRun:
    """One attempt of one batch. `Claim.lines` notes how each line ended; the lease keeps that for the next attempt."""

    processor: Processor
    claim: Claim

    @property
    def _queue(self) -> Queue:
        return self.processor.queue

    def run(self) -> Step:
        """Call the handler for the lines that are left; what is returned writes how the attempt ended."""
        processor, queue, claim = self.processor, self._queue, self.claim
        total = 0
        after: timedelta | None = None
        postponed: timedelta | None = None
        written = queue.clock.monotonic()
        started = False
        try:
            batch = self._spooled()
        except (MessageNotFound, NoSpace) as error:
            return partial(processor.fail, claim, error, after=None)
        except MessageTooLarge as error:
            return partial(processor.fail, claim, error, after=None, dead=True)
        # Lines are read once, in order: of a batch that begins, each is pending.
        is_fresh = claim.lines.is_empty()
        longest = queue.settings.max_message_size
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
                if started and processor.should_stop():
                    return partial(processor.release, claim)
                if started and queue.gate and not self._is_permitted():
                    return self._wait_for_limits
                if queue.clock.monotonic() - written > claim.lease.timeout.total_seconds() / 2:
                    queue.extend(claim)
                    written = queue.clock.monotonic()
                started = True
                claim.check_alive()
                asked = self._call(pending)
                if isinstance(asked, Postpone):
                    postponed = max(postponed or asked.after, asked.after)
                elif asked is not None:
                    after = max(after or asked, asked)
        if postponed is not None:
            return partial(processor.postpone, claim, postponed)
        if claim.lines.failed:
            return partial(processor.fail, claim, claim.lines.failure(total), after=after)
        complete = partial(queue.complete_lines, claim, total, clear=processor.clears)
        return lambda: processor.known(complete).outcome

    def _spooled(self) -> IO[bytes]:
        """The batch in the temporary folder, if its size and its number of lines are within the limits."""
        message, settings = self.claim.message, self._queue.settings
        if message.size > most_bytes(self.claim.path, settings.max_batch_size):
            raise MessageTooLarge(f"{message.size} bytes, max_batch_size is {settings.max_batch_size}")
        most = most_lines(self.claim.path, settings.max_batch_lines)
        if message.inline is None:
            return spooled(message.open(), max_lines=most)
        check_lines(message.inline.count(b"\n"), most)
        return io.BytesIO(message.inline)

    def _chunks(self, lines: Iterator[tuple[int, Line]]) -> Iterator[list[tuple[int, Line]]]:
        """As many lines as a handler gets in one call; long lists end early, so that few bytes are in memory."""
        most = LINES_PER_CALL if self.processor.definition.takes_list else 1
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

    def _is_permitted(self) -> bool:
        """Whether the queue's limits let the handler be called for another line, after a short wait if need be."""
        queue, claim = self._queue, self.claim
        until = queue.clock.monotonic() + PATIENCE_SECONDS
        while not queue.may_call(claim.path):
            gate = queue.gate
            wait = max(gate.wait(claim.path) if gate else 0.0, 0.1)
            left = min(until - queue.clock.monotonic(), claim.remaining().total_seconds() / 2)
            if wait > left or self.processor.should_stop():
                return False
            queue.clock.sleep(wait)
        return True

    def _wait_for_limits(self) -> AttemptEnding:
        wait = max(self._queue.free_at(self.claim.path) - self.claim.now(), timedelta())
        self.processor.known(lambda: self._queue.leases.postpone(self.claim, wait, is_asked=False))
        return "postponed"

    def _call(self, pending: list[tuple[int, Line]]) -> timedelta | Postpone | None:
        """Run some lines in one call and note how each ended; returns the delay that the handler asked for, if any.

        Lines that their handler postpones stay as they are.
        """
        processor, queue, claim = self.processor, self._queue, self.claim
        definition = processor.definition
        parsed = self._parsed(pending)
        if not parsed:
            return None
        context = processor.context(claim, line=0 if definition.takes_list else parsed[0][0])
        numbers = [number for number, _ in parsed]
        which = f"lines {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"line {numbers[0]}"
        queue.leases.log_step("handler started", claim, which)
        try:
            with processor.around_call(claim, numbers), handling(context):
                if definition.takes_list:
                    definition.call([argument for _, argument in parsed], context)
                    results: list[Any] = []
                else:
                    results = [definition.call(parsed[0][1], context)]
            sends = processor.sends_of(context, *results)
        except failures() as error:
            queue.leases.log_step("handler raised", claim, f"{which}: {type(error).__name__}")
            check_ours(claim, error)
            if not isinstance(error, Postpone):
                queue.note_call(claim, error)
            if isinstance(error, Postpone) and claim.lease.postponed < queue.settings.max_postpones:
                return error
            fail_lines(queue, claim, numbers, Failure.of(error), dead=isinstance(error, Reject))
            return error.after if isinstance(error, Retry) else None
        queue.leases.log_step("handler returned", claim, which)
        if definition.takes_list:
            claim.lines.complete_all(numbers)
        else:
            claim.lines.complete(numbers[0], results[0])
        if sends:
            processor.known(lambda: queue.leases.make_room(claim, sends))
            claim.lines.sends.extend(sends)
            processor.known(lambda: queue.leases.stage(claim))
        queue.note_call(claim, None)
        return None

    def _parsed(self, pending: list[tuple[int, Line]]) -> list[tuple[int, Any]]:
        """The lines as the handler gets them. Those that it cannot get are dead."""
        definition, lines = self.processor.definition, self.claim.lines
        parsed: list[tuple[int, Any]] = []
        parse = io.BytesIO if definition.takes_stream else definition.parse
        for number, line in pending:
            if isinstance(line, LongLine):
                said = f"line {number}: {line.size} bytes, max_message_size is {self._queue.settings.max_message_size}"
                lines.fail(number, self.claim.attempt, Failure("MessageTooLarge", said), dead=True)
                continue
            try:
                parsed.append((number, parse(line)))
            except Reject as error:
                reason = Failure("Reject", f"line {number}: {error}")
                lines.fail(number, self.claim.attempt, reason, dead=True)
        return parsed


def fail_lines(queue: Queue, claim: Claim, lines: Sequence[int], failure: Failure, *, dead: bool = False) -> None:
    """Note that the call for these lines has failed; they are dead if it was their last."""
    dead = dead or not queue.settings.retry.can_retry(claim.attempt)
    for number in lines:
        claim.lines.fail(number, claim.attempt, failure, dead=dead)
