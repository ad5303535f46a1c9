"""s3queue: a message queue whose only server is an S3 bucket."""

from .claim import Claim
from .context import Context
from .dead_letters import DeadLetter, DeadLetters
from .definition import Definition, define
from .errors import (
    AccessDenied,
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
    NotFound,
    QueueError,
    QueueFull,
    Reject,
    Retry,
    Unavailable,
)
from .events import Events
from .locks import Lock
from .message import Message
from .processing import Processor
from .queue import Queue
from .record import Record
from .report import Report
from .retry import RetryPolicy
from .settings import Deployment, QueueSettings
from .stats import Stats
from .status import Status
from .store import ObjectStore
from .sweep import Sweeper
from .wiring import connect
from .worker import Worker

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
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
    "InvalidName",
    "InvalidPriority",
    "InvalidRequest",
    "LeaseLost",
    "Lock",
    "Message",
    "MessageNotFound",
    "MessageTooLarge",
    "NewerFormat",
    "NotFound",
    "ObjectStore",
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
    "Stats",
    "Status",
    "Sweeper",
    "Unavailable",
    "Worker",
    "connect",
    "define",
]
