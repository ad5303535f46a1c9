"""Gate: what may keep a message from being claimed although nobody has it: a rate, a breaker. `flow/gate.py` is it."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Permit(Protocol):
    """The permission to claim one message and call its handler once."""

    def confirm(self, at: datetime, fence: str) -> bool:
        """Whether it still counted when the lease was written, by S3's clock. If not, the claim has to be undone.

        If so, it is the permit of the claim with this fence.
        """
        ...

    def cancel(self) -> None:
        """No handler was called: someone else may be permitted in its place."""
        ...


class Gate(Protocol):
    """Asked before every claim of a queue that has limits."""

    def wait(self, path: str) -> float:
        """Seconds until asking for this message makes sense, as far as this process knows. Sends no request."""
        ...

    def enter(self, path: str) -> Permit | None:
        """A permit; None: leave the message where it is for now. Unclear answers of the store count as no."""
        ...

    def wait_for_any(self) -> float:
        """Seconds for which no message at all can be claimed, as far as this process knows. Sends no request."""
        ...

    def free_at(self, path: str) -> datetime:
        """When S3's clock will show that asking for this message makes sense. Sends no request."""
        ...
