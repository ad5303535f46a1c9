"""A variant of the stack as the tests of infra/ read it, and the queues that it serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from infra.synthesized import SynthesizedStack
from s3queue.settings import QueueSettings
from support.iam_template import ACCOUNT, REGION, Template


@dataclass(frozen=True)
class Queue:
    name: str
    settings: QueueSettings
    sends_to: tuple[str, ...] = ()
    flows: bool = False


#: A customer's KMS key.
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/1234abcd-12ab-34cd-56ef-1234567890ab"
QUEUES = {
    queue.name: queue
    for queue in (
        Queue("emails", QueueSettings(concurrency=5, record_retention=timedelta(days=5))),
        Queue(
            "webhooks",
            QueueSettings(events="failures", dead_retention=timedelta(days=30), memory_mib=256, pending_alarm=50),
        ),
        # A name that begins like another's: prefixes must end at the slash.
        Queue(
            "emails-bulk", QueueSettings(handler_timeout=timedelta(minutes=5), visibility_timeout=timedelta(hours=1))
        ),
    )
}


@dataclass(frozen=True)
class Variant:
    """One synthesized stack, and what the synth said."""

    template: Template
    infos: list[str]
    warnings: list[str]
    #: The templates as CloudFormation gets them, nested ones included.
    synthesized: SynthesizedStack | None = None

    @property
    def bucket(self) -> str:
        """The ARN of the bucket that holds the queues."""
        return self.template.queue_bucket

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return list(self.template.of_type(kind).values())


Synthesize = Callable[..., Variant]
