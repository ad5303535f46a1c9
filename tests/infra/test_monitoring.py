"""Who is told what, and when."""

from __future__ import annotations

import re
from typing import Any

import pytest

from s3queue.costs.bill import bill_of
from s3queue.costs.estimate import estimate
from s3queue.costs.workload import Workload
from s3queue.deployment import ALARM_METRICS, METRICS
from support.iam_template import ACCOUNT
from support.stack_variant import QUEUES, Synthesize, Variant


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
def test_every_queue_is_watched_for_age_depth_dead_letters_dropped_events_and_throttles(
    stack: Variant, queue: str
) -> None:
    named = queue.replace("-", "")
    found = {name: watched(alarm) for name, alarm in alarms(stack).items()}
    own, function = {"queue": queue}, {"FunctionName": f"s3queue-{queue}"}
    assert found[f"OldestTooOld{named}"] == ("s3queue", "AgeOfOldest", own)
    assert found[f"TooManyPending{named}"] == ("s3queue", "Pending", own)
    assert alarms(stack)[f"TooManyPending{named}"]["Threshold"] == QUEUES[queue].settings.pending_alarm
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


@pytest.mark.parametrize("metrics", list(METRICS))
def test_what_is_published_is_watched_and_drawn_and_nothing_else(synthesize: Synthesize, metrics: str) -> None:
    stack = synthesize(metrics=metrics)
    (dashboard,) = stack.of_type("AWS::CloudWatch::Dashboard")
    for queue in QUEUES:
        for metric in METRICS["all"]:
            is_drawn = f'"s3queue","{metric}","queue","{queue}"' in dashboard["DashboardBody"]
            assert is_drawn == (metric in METRICS[metrics]), metric
    own = {watched(alarm)[1] for alarm in alarms(stack).values() if watched(alarm)[0] == "s3queue"}
    assert own == set(METRICS[metrics]) & set(ALARM_METRICS)
    functions = [f for f in stack.of_type("AWS::Lambda::Function") if "FunctionName" in f]
    assert {f["Environment"]["Variables"]["S3QUEUE_METRICS"] for f in functions} == {metrics}


@pytest.mark.parametrize("metrics", list(METRICS))
def test_the_estimate_counts_the_alarms_that_are_deployed(synthesize: Synthesize, metrics: Any) -> None:
    load = Workload(rate=1, queues=len(QUEUES), metrics=metrics)
    billed = {line.what: line.count for line in bill_of(estimate(load)).lines}
    assert billed["CloudWatch: alarms"] == len(alarms(synthesize(metrics=metrics)))
    assert billed.get("CloudWatch: metrics", 0) == len(METRICS[metrics]) * len(QUEUES)


def test_nothing_is_traced_unless_someone_asks_for_it(stack: Variant, synthesize: Synthesize) -> None:
    def modes(of: Variant) -> set[Any]:
        functions = [f for f in of.of_type("AWS::Lambda::Function") if "FunctionName" in f]
        return {f.get("TracingConfig", {}).get("Mode") for f in functions}

    assert modes(stack) == {None}
    assert modes(synthesize(tracing=True)) == {"Active"}
