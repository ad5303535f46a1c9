"""Collecting: one call of a handler for many messages of a partition, and an outcome for each of them.  [P9]"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from s3queue.errors import InvalidRequest, LeaseLost, QueueError, Reject, Unavailable
from s3queue.protocol.claim import Claim

from .processor import AttemptEnding, Processor, failures
from .spans import handling

_log = logging.getLogger(__name__)


def process_together(processor: Processor, claims: Sequence[Claim]) -> list[AttemptEnding]:
    """Call the handler once with the payloads of all of them; how each attempt ended.

    The handler returns None: all are completed. Or a list with an entry for each: its result, or an exception, with
    which that one has failed. If it raises, all have. What it sends goes with the first one that is completed.
    """
    endings: dict[str, AttemptEnding] = {}
    parsed: list[tuple[Claim, Any]] = []
    for claim in claims:
        try:
            items = processor.definition.argument(claim.message, processor.queue.settings)
            if len(items) != 1:
                raise Reject(f"a queue that collects takes one payload a message, not a list of {len(items)}")
            parsed.append((claim, items[0]))
        except failures() as error:
            endings[claim.path] = _end(processor, claim, error, is_called=False)
    if parsed:
        endings |= _call(processor, parsed)
    for claim in claims:
        processor.queue.note_undecided(claim)  # unless its call was noted, as in `Processor.conclude`
    return [endings[claim.path] for claim in claims]


def _call(processor: Processor, parsed: Sequence[tuple[Claim, Any]]) -> dict[str, AttemptEnding]:
    first = parsed[0][0]
    claims = [claim for claim, _ in parsed]
    first.companions = tuple(claims[1:])
    bodies = [body for _, body in parsed]
    context = processor.context(first)
    results: list[Any]
    try:
        first.check_alive()
        with processor.around_call(first, ()), handling(context):
            returned = processor.definition.call(bodies, context)
        results = _results(returned, claims)
        sends = processor.sends_of(context)
    except failures() as error:
        if isinstance(error, LeaseLost) and not first.is_alive():
            # Of all of them, also if the others are alive: a thread that gave the handler up ends those.
            return {claim.path: "lost" for claim in claims}
        return {claim.path: _end(processor, claim, error, is_called=claim is first) for claim in claims}
    # The breaker counts calls: one that failed for all of its messages, or one that did not.
    failed = [claim for claim, result in zip(claims, results, strict=True) if isinstance(result, BaseException)]
    telling = first if len(failed) == len(claims) else None
    endings: dict[str, AttemptEnding] = {}
    for claim, result in zip(claims, results, strict=True):
        if isinstance(result, BaseException):
            endings[claim.path] = _end(processor, claim, result, is_called=claim is telling)
        else:
            endings[claim.path] = _end(processor, claim, None, result=result, sends=sends)
            sends = []
    return endings


def _end(processor: Processor, claim: Claim, error: BaseException | None, **known: Any) -> AttemptEnding:
    try:
        return processor.end(claim, error, **known)
    except (LeaseLost, Unavailable):
        return "lost"
    except QueueError as problem:
        # As in `Processor.process`: a missing permission, say. It must not take the other messages' outcomes along.
        _log.error("outcome not written: %s/%s: %s", processor.queue.name, claim.path, problem)
        return "lost"


def _results(returned: Any, claims: Sequence[Claim]) -> list[Any]:
    if returned is None:
        return [None] * len(claims)
    if not isinstance(returned, list) or len(returned) != len(claims):
        raise InvalidRequest(
            f"a handler that collects returns None, or a list with an entry for each of its {len(claims)} messages"
        )
    return returned
