"""Who is told what, and when."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.iam_template import ACCOUNT
from support.stack_variant import QUEUES, Variant


def alarms(stack: Variant) -> dict[str, Any]:
    """By the construct's name, whichever stack it is in."""
    return {
        re.sub(r"^Monitoring|^Queue\w+?[0-9A-F]{8}Queue", "", id)[:-8]: properties
        for id, properties in stack.template.of_type("AWS::CloudWatch::Alarm").items()
    }


def watched(alarm: dict[str, Any]) -> tuple[str, str, dict[str, str]]:
    # A plain metric: the emulator that runs this very stack knows no metric math.
    dimensions = {dimension["Name"]: dimension["Value"] for dimension in alarm["Dimensions"]}
    return alarm["Namespace"], alarm["MetricName"], dimensions


@pytest.mark.parametrize("queue", QUEUES)
def test_every_queue_is_watched_for_age_dead_letters_dropped_events_and_throttles(stack: Variant, queue: str) -> None:
    named = queue.replace("-", "")
    found = {name: watched(alarm) for name, alarm in alarms(stack).items()}
    own, function = {"queue": queue}, {"FunctionName": f"s3queue-{queue}"}
    assert found[f"OldestTooOld{named}"] == ("s3queue", "AgeOfOldest", own)
    assert found[f"DeadLetters{named}"] == ("s3queue", "Dead", own)
    assert found[f"EventsDropped{named}"] == ("AWS/Lambda", "AsyncEventsDropped", function)
    assert found[f"Throttled{named}"] == ("AWS/Lambda", "Throttles", function)


def test_a_sweeper_that_does_not_run_or_only_fails_raises_the_alarm(stack: Variant) -> None:
    silent, failing = alarms(stack)["SweeperSilent"], alarms(stack)["SweeperFailing"]
    sweeper = {"FunctionName": "s3queue_sweeper"}
    assert watched(silent) == ("AWS/Lambda", "Invocations", sweeper)
    assert (silent["ComparisonOperator"], silent["Threshold"]) == ("LessThanThreshold", 1)
    # No invocation at all is no data at all.
    assert silent["TreatMissingData"] == "breaching"
    assert watched(failing) == ("AWS/Lambda", "Errors", sweeper)


def test_an_idle_queue_raises_no_alarm(stack: Variant) -> None:
    for name, alarm in alarms(stack).items():
        if name != "SweeperSilent":
            assert alarm["TreatMissingData"] == "notBreaching", name


def test_a_burst_behind_the_concurrency_limit_wakes_nobody(stack: Variant) -> None:
    alarm = alarms(stack)["Throttledemails"]
    assert alarm["Period"] * alarm["EvaluationPeriods"] >= 15 * 60


def test_every_alarm_reaches_the_topic_says_what_to_do_and_cloudwatch_may_publish(stack: Variant) -> None:
    (topic,) = {action for alarm in alarms(stack).values() for action in alarm["AlarmActions"]}
    assert all(len(alarm["AlarmDescription"]) > 40 for alarm in alarms(stack).values())
    (policy,) = stack.of_type("AWS::SNS::TopicPolicy")
    (allow,) = (s for s in policy["PolicyDocument"]["Statement"] if s["Effect"] == "Allow")
    assert allow["Principal"] == {"Service": "cloudwatch.amazonaws.com"}
    assert (allow["Action"], allow["Resource"]) == ("sns:Publish", topic)
    assert allow["Condition"] == {"StringEquals": {"aws:SourceAccount": ACCOUNT}}


def test_the_dashboard_shows_every_queue(stack: Variant) -> None:
    (dashboard,) = stack.of_type("AWS::CloudWatch::Dashboard")
    for queue in QUEUES:
        for metric in ("Completed", "Dead", "AgeOfOldest", "WaitTime", "RunTime", "Rescued", "ClaimConflicts"):
            assert f'"s3queue","{metric}","queue","{queue}"' in dashboard["DashboardBody"]
