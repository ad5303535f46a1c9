"""AWS requests besides those for objects: which function S3 notifies, its concurrency, and its invocation."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from s3queue.deployment import Deployment
from s3queue.errors import AccessDenied, CorruptState, InvalidRequest, NotFound, QueueError, Unavailable
from s3queue.keys import Keys

from .session import Session

#: S3's names of the three kinds of targets, and the field that holds the target's ARN.
_TARGETS = {
    "LambdaFunctionConfigurations": "LambdaFunctionArn",
    "QueueConfigurations": "QueueArn",
    "TopicConfigurations": "TopicArn",
}


@dataclass(frozen=True, slots=True)
class NotificationRule:
    """A notification rule of the bucket: which keys notify which target."""

    target: str
    prefix: str
    suffix: str
    events: tuple[str, ...]

    def is_notified_of(self, key_prefix: str) -> bool:
        """Whether an object with this prefix can notify the target."""
        return key_prefix.startswith(self.prefix) or self.prefix.startswith(key_prefix)

    @property
    def hears_creation(self) -> bool:
        return bool({"s3:ObjectCreated:*", "s3:ObjectCreated:Put"} & set(self.events))

    @property
    def function(self) -> str | None:
        """The name of the Lambda function, if the target is one."""
        parts = self.target.split(":")
        return parts[6] if len(parts) > 6 and parts[2] == "lambda" else None


@contextmanager
def asking(what: str, permission: str) -> Iterator[None]:
    """Turns AWS's error answers into s3queue's errors."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        said = error.response.get("Error", {}).get("Message", "")
        if status in (401, 403):
            raise AccessDenied(f"{what}: {said or 'access denied'}; allow {permission}") from error
        if status == 404:
            raise NotFound(f"{what}: {said or 'not found'}") from error
        if status >= 500 or status == 429:
            raise Unavailable(f"{what}: {said or status}") from error
        raise InvalidRequest(f"{what}: {said or status}") from error
    except BotoCoreError as error:
        raise Unavailable(f"{what}: {error}") from error


def notifications(session: Session) -> list[NotificationRule]:
    """All notification rules of the bucket; target `events` if it notifies EventBridge."""
    with asking(f"the notifications of {session.bucket_url}", "s3:GetBucketNotification"):
        found = session.s3_client().get_bucket_notification_configuration(Bucket=session.bucket)
    rules = []
    for kind, target in _TARGETS.items():
        for rule in found.get(kind, ()):
            filters = {
                entry["Name"].lower(): entry["Value"]
                for entry in rule.get("Filter", {}).get("Key", {}).get("FilterRules", ())
            }
            rules.append(
                NotificationRule(
                    rule[target], filters.get("prefix", ""), filters.get("suffix", ""), tuple(rule.get("Events", ()))
                )
            )
    if found.get("EventBridgeConfiguration") is not None:
        rules.append(NotificationRule("events", "", "", ("s3:ObjectCreated:*",)))
    return rules


def worker_function(session: Session, queue: str) -> str | None:
    """The worker function of this queue, from the environment or from the bucket's rules; None if it is unknown."""
    if os.environ.get("S3QUEUE_WORKERS") and os.environ.get("S3QUEUE_BUCKET") == session.bucket:
        try:
            known = Deployment.from_env(os.environ).workers.get(queue)
        except CorruptState:
            known = None
        if known:
            return known
    if not session.is_s3:
        return None
    try:
        rules = notifications(session)
    except QueueError as error:
        session.note(f"the worker function is unknown: {error}")
        return None
    prefix = Keys(queue).prefix("messages")
    return next((rule.function for rule in rules if rule.function and prefix.startswith(rule.prefix)), None)


def reserve_concurrency(session: Session, function: str, concurrency: int) -> None:
    with asking(f"reserved concurrency of {function}", "lambda:PutFunctionConcurrency"):
        session.client("lambda").put_function_concurrency(
            FunctionName=function, ReservedConcurrentExecutions=concurrency
        )


def dispatcher(session: Session, function: str) -> Any:
    """A dispatch for a sweeper: invokes the function, and does not wait for it."""
    client: Any = session.client("lambda")

    def dispatch(paths: Sequence[str]) -> None:
        with asking(f"invoking {function}", "lambda:InvokeFunction"):
            client.invoke(
                FunctionName=function, InvocationType="Event", Payload=json.dumps({"paths": list(paths)}).encode()
            )

    return dispatch
