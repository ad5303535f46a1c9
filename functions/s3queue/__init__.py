"""s3queue: a message queue whose only server is an S3 bucket."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from s3queue.documents.message import Message
from s3queue.documents.record import Record
from s3queue.documents.sends import Send
from s3queue.protocol.claim import Claim
from s3queue.worker.context import Context
from s3queue.worker.definition import Definition, define

from .connect import connect
from .deployment import Deployment
from .errors import (
    AccessDenied,
    AttemptFailed,
    Cancelled,
    Conflict,
    Contended,
    CorruptState,
    InvalidName,
    InvalidPriority,
    InvalidRequest,
    LeaseLost,
    MessageNotFound,
    MessageTooLarge,
    NewerFormat,
    NoSpace,
    NotFound,
    Postpone,
    QueueError,
    QueueFull,
    Reject,
    Retry,
    Unavailable,
)
from .events import Events
from .limits import Breaker
from .queue import Queue
from .retry import RetryPolicy
from .settings import QueueSettings
from .store import ObjectStore

if TYPE_CHECKING:
    from s3queue.documents.dead_letter import DeadLetter
    from s3queue.flow.flow_states import Flows
    from s3queue.flow.flows import Flow
    from s3queue.protocol.dead_letters import DeadLetters
    from s3queue.protocol.locks import Lock
    from s3queue.protocol.stats import Stats
    from s3queue.protocol.status import Status
    from s3queue.sweeper.report import Report
    from s3queue.sweeper.sweeper import Sweeper
    from s3queue.worker.processor import Processor
    from s3queue.worker.pull_worker import Worker
    from s3queue.worker.secrets import secret

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "AttemptFailed",
    "Breaker",
    "Cancelled",
    "Claim",
    "Conflict",
    "Contended",
    "Context",
    "CorruptState",
    "DeadLetter",
    "DeadLetters",
    "Definition",
    "Deployment",
    "Events",
    "Flow",
    "Flows",
    "InvalidName",
    "InvalidPriority",
    "InvalidRequest",
    "LeaseLost",
    "Lock",
    "Message",
    "MessageNotFound",
    "MessageTooLarge",
    "NewerFormat",
    "NoSpace",
    "NotFound",
    "ObjectStore",
    "Postpone",
    "Processor",
    "Queue",
    "QueueError",
    "QueueFull",
    "QueueSettings",
    "Record",
    "Reject",
    "Report",
    "Retry",
    "RetryPolicy",
    "Send",
    "Stats",
    "Status",
    "Sweeper",
    "Unavailable",
    "Worker",
    "connect",
    "define",
    "secret",
]

#: Imported when they are first used: a function that starts cold needs few of them, and each module costs it time.
_LATER = {
    "DeadLetter": "s3queue.documents.dead_letter",
    "DeadLetters": "s3queue.protocol.dead_letters",
    "Flow": "s3queue.flow.flows",
    "Flows": "s3queue.flow.flow_states",
    "Lock": "s3queue.protocol.locks",
    "Processor": "s3queue.worker.processor",
    "Report": "s3queue.sweeper.report",
    "Stats": "s3queue.protocol.stats",
    "Status": "s3queue.protocol.status",
    "Sweeper": "s3queue.sweeper.sweeper",
    "Worker": "s3queue.worker.pull_worker",
    "secret": "s3queue.worker.secrets",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_LATER]
