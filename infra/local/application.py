"""What the shipped queues are told on this machine, where there is neither a mail server nor a secret to share.

In a project of one's own, the shell says what handlers read: its CDK app takes it from there.
"""

from __future__ import annotations

import os

from .. import IS_REPOSITORY
from .home import Home

#: Signs the webhooks of a stack that only this machine can reach.
WEBHOOK_SECRET = "known-to-everyone-on-this-machine"


def read_by_handlers() -> set[str]:
    """The environment variables that any queue's handler reads, secrets included: here they are set in the shell."""
    if not IS_REPOSITORY:
        return set()
    import queues

    return {name for queue in queues.load() for name in (*queues.environment(queue), *queues.secrets(queue, "local"))}


def variables_of(home: Home) -> dict[str, str]:
    """What `make up` deploys with: what suits this machine, unless the shell says something else."""
    here = {name: os.environ[name] for name in read_by_handlers() if name in os.environ}
    return for_this_machine(home) | here


def for_this_machine(home: Home) -> dict[str, str]:
    """Enough for every shipped queue to do its work without leaving this machine."""
    if not IS_REPOSITORY:
        return {}
    return {
        "EMAIL_OUTBOX": str(home.path / "outbox"),
        "WEBHOOK_ALLOW_LOCAL": "true",
        "WEBHOOK_SECRET": WEBHOOK_SECRET,
    }
