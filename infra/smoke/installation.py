"""Installation: one deployed stack as the smoke uses it: its queues, what was sent to them, how each message ended."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import queues
from infra.local.demo.messages import Sent
from s3queue.connect import connect
from s3queue.deployment import Deployment
from s3queue.documents.record import Outcome, Record
from s3queue.queue import Queue

from .account import Account

T = TypeVar("T")
#: S3's events take seconds, sometimes more than a minute; the sweeper comes every minute.
PATIENCE_SECONDS = 240.0
#: EMR Serverless starts a run in about a minute; an account without room queues it.
SPARK_SECONDS = 1200.0
LOOK_SECONDS = 0.3
#: Services other than S3 answer ten questions a second, or fewer.
ASK_SECONDS = 2.0


class Failed(Exception):
    """A path did not end as it has to; the text says how it did."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was measured."""

    what: str
    value: str


class Installation:
    """A deployed stack. Everything is asked as an operator asks it: S3, Lambda, CloudFormation, logs."""

    def __init__(self, account: Account, name: str, kms_key: str = "") -> None:
        self.account, self.name, self.kms_key = account, name, kms_key
        self.sent: list[Sent] = []
        self.figures: list[Figure] = []
        #: Ends every wait.
        self.is_stopped = threading.Event()

    @property
    def stacks(self) -> list[str]:
        """In the order in which they can be removed."""
        return [self.name, f"{self.name}-spark"]

    @cached_property
    def deployment(self) -> Deployment:
        """Bucket, workers and Spark application, as the sweeper is told them."""
        found = self.account.client("lambda").get_function_configuration(FunctionName=self.sweeper)
        return Deployment.from_env(found["Environment"]["Variables"])

    @property
    def sweeper(self) -> str:
        return f"{self.name}_sweeper"

    @property
    def bucket(self) -> str:
        return self.deployment.bucket

    @cached_property
    def outputs(self) -> dict[str, str]:
        (stack,) = self.account.client("cloudformation").describe_stacks(StackName=self.name)["Stacks"]
        return {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", ())}

    def output(self, start: str) -> str:
        """The output whose name begins so; CDK adds a hash to the names of constructs."""
        (found,) = [value for name, value in self.outputs.items() if name.startswith(start)]
        return found

    def queue(self, name: str) -> Queue:
        settings = queues.load_one(name).settings
        return connect(f"s3://{self.bucket}/{name}", settings=settings, client=self.account.client("s3"))

    def put(self, sent: Sent) -> float:
        """A plain PutObject, as any producer's; when it was sent, by this machine's clock."""
        self.sent.append(sent)
        at = time.time()
        self.account.client("s3").put_object(Bucket=self.bucket, Key=sent.key, Body=sent.body)
        return at

    def task(self, name: str, do: str = "return") -> Sent:
        """A message for the smoke queue's handler, not sent yet."""
        body = json.dumps({"do": do}).encode()
        return Sent(kind="smoke", queue="smoke", path=f"messages/{name}.json", body=body)

    def outcome(self, sent: Sent, *, how: Outcome = "completed", seconds: float = PATIENCE_SECONDS) -> Record:
        """The record of a message, once it is of this outcome.

        Raises:
            Failed: there is none in time, with where the message is instead.
        """
        outcomes = self.queue(sent.queue).outcomes

        def ended() -> Record | None:
            found = outcomes.read(sent.path)
            return found if found and found.outcome == how else None

        try:
            return self.until(ended, f"{sent.key} is not {how}", seconds=seconds)
        except Failed as failed:
            state = self.queue(sent.queue).status(sent.path).state
            raise Failed(f"{failed}; it is {state}") from None

    def until(
        self,
        question: Callable[[], T | None],
        otherwise: str,
        *,
        seconds: float = PATIENCE_SECONDS,
        every: float = LOOK_SECONDS,
    ) -> T:
        """The first answer that is not false.

        Raises:
            Failed: none in time.
        """
        deadline = time.monotonic() + seconds
        while not (answer := question()):
            if time.monotonic() > deadline:
                raise Failed(f"{otherwise} after {seconds:.0f} s")
            if self.is_stopped.wait(every):
                raise Failed(f"{otherwise}, and nobody waits any longer")
        return answer

    def logged(self, function: str, text: str) -> list[str]:
        """The lines of a function's log that hold a text."""
        pages = self.account.client("logs").get_paginator("filter_log_events")
        # Not by a filter pattern: its rules for quotes and braces differ from one implementation to the next.
        found = pages.paginate(logGroupName=f"/aws/lambda/{function}")
        return [event["message"] for page in found for event in page["events"] if text in event["message"]]

    def measured(self, what: str, value: str) -> None:
        self.figures.append(Figure(what, value))
