"""Hooks of a definition: `on_error(error, message, context)` and `on_complete(message, result, context)`.

They only listen. What they raise is logged and changes nothing. They run in the process that wrote the outcome, after
that, and once per outcome at most: a process that crashes in between calls none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from s3queue.errors import InvalidRequest, LeaseLost
from s3queue.events import Hook, InProcess, Told
from s3queue.protocol.claim import Claim

from .context import Context
from .loop import loop
from .signatures import accepts


def error_hook(hook: Callable[..., Any]) -> Hook:
    """For `message.retry` and `message.dead`. Raises InvalidRequest if the hook cannot be called."""
    return _hook(
        hook, "on_error", "error, message, context", lambda local, at: (local.exception, local.claim.message, at)
    )


def complete_hook(hook: Callable[..., Any]) -> Hook:
    """For `message.completed`. Raises InvalidRequest if the hook cannot be called."""
    return _hook(
        hook, "on_complete", "message, result, context", lambda local, at: (local.claim.message, local.result, at)
    )


def _hook(
    hook: Callable[..., Any], name: str, takes: str, arguments: Callable[[InProcess, Context], tuple[Any, ...]]
) -> Hook:
    # One that could take both, with defaults or `*args`, is told all.
    wants_fields = accepts(hook, 1) and not accepts(hook, 3)
    if not wants_fields and not accepts(hook, 3):
        raise InvalidRequest(f"a hook of {name} must take ({takes}), or the event's fields alone: {hook!r}")

    def call(fields: Mapping[str, Any]) -> None:
        if wants_fields:
            returned = hook(fields)
        else:
            local = fields.in_process if isinstance(fields, Told) else None
            if local is None:
                return  # it was told by hand, of no message
            returned = hook(*arguments(local, _context(local.claim, fields)))
        if inspect.isawaitable(returned):
            loop.run(returned)

    call.__qualname__ = getattr(hook, "__qualname__", repr(hook))  # the log names a hook that hangs
    return call


def _context(claim: Claim, fields: Mapping[str, Any]) -> Context:
    """What the handler knew. The attempt is over: nothing can be extended."""

    def renew(claim: Claim, timeout: timedelta | None) -> None:
        raise LeaseLost(f"the attempt is over: {claim.message.queue}/{claim.path}: a hook cannot extend it")

    return Context(claim=claim, max_attempts=int(fields.get("max_attempts", 0)), renew=renew)
