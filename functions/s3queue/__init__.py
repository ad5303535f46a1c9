"""s3queue: a message queue whose only server is an S3 bucket."""

from s3queue.documents.dead_letter import DeadLetter
from s3queue.documents.message import Message
from s3queue.documents.record import Record
from s3queue.protocol.claim import Claim
from s3queue.protocol.dead_letters import DeadLetters
from s3queue.protocol.locks import Lock
from s3queue.protocol.stats import Stats
from s3queue.protocol.status import Status
from s3queue.sweeper.report import Report
from s3queue.sweeper.sweeper import Sweeper
from s3queue.worker.context import Context
from s3queue.worker.definition import Definition, define
from s3queue.worker.processor import Processor
from s3queue.worker.pull_worker import Worker

from .connect import connect
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
    NoSpace,
    NotFound,
    QueueError,
    QueueFull,
    Reject,
    Retry,
    Unavailable,
)
from .events import Events
from .queue import Queue
from .retry import RetryPolicy
from .settings import Deployment, QueueSettings
from .store import ObjectStore

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
    "NoSpace",
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
