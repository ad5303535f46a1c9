"""A queue whose messages only pull workers run: no function, no event; swept, shown and watched like any other."""

from __future__ import annotations

import json

import pytest

from support.iam_template import ACCOUNT, REGION
from support.stack_variant import Synthesize, Variant


@pytest.fixture(scope="module")
def stack(synthesize: Synthesize) -> Variant:
    return synthesize(pulled=["webhooks"])


def test_it_has_no_function_and_no_event_is_routed(stack: Variant) -> None:
    names = [str(found["FunctionName"]) for found in stack.of_type("AWS::Lambda::Function") if "FunctionName" in found]
    assert "s3queue-emails" in names
    assert not [name for name in names if "webhooks" in name]
    assert "webhooks/messages/" not in json.dumps(stack.of_type("Custom::S3BucketNotifications"))


def test_the_sweeper_sweeps_it_and_invokes_nothing_for_it(stack: Variant) -> None:
    variables = stack.template.function("s3queue_sweeper")["Environment"]["Variables"]
    assert '"webhooks":""' in json.dumps(variables["S3QUEUE_WORKERS"]).replace("\\", "")
    sweeper = stack.template.role_of("s3queue_sweeper")
    assert sweeper.may("s3:PutObject", f"{stack.bucket}/webhooks/leases/messages/x", {"s3:if-none-match": "*"})
    assert sweeper.may("lambda:InvokeFunction", f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:s3queue-emails")
    assert not sweeper.may("lambda:InvokeFunction", f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:s3queue-webhooks")


def test_producers_may_enqueue_and_operators_see_it(stack: Variant) -> None:
    policies = [str(found.get("Description", "")) for found in stack.of_type("AWS::IAM::ManagedPolicy")]
    assert any("May enqueue to webhooks" in policy for policy in policies)
    api = stack.template.role_of("s3queue_api")
    assert api.may("s3:GetObject", f"{stack.bucket}/webhooks/messages/x")


def test_its_age_and_backlog_are_watched_and_no_function_that_it_lacks(stack: Variant) -> None:
    alarms = [json.dumps(found) for found in stack.of_type("AWS::CloudWatch::Alarm")]
    of_it = [alarm for alarm in alarms if "webhooks" in alarm]
    assert any("AgeOfOldest" in alarm for alarm in of_it)
    assert any("Pending" in alarm for alarm in of_it)
    assert any("Dead" in alarm for alarm in of_it)
    assert not any("AsyncEventsDropped" in alarm or "Throttles" in alarm for alarm in of_it)


def test_events_that_nobody_would_publish_are_warned_of(stack: Variant, synthesize: Synthesize) -> None:
    said = [text for text in stack.warnings if "EventBridge" in text]
    assert len(said) == 1
    assert "webhooks" in said[0]
    assert "pull workers" in said[0]
    # With a function that runs its messages, all of them are published.
    assert not [text for text in synthesize().warnings if "EventBridge" in text]
