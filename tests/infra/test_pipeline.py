"""The pipeline: off unless asked for; then its schedules start what EMR accepts, as a role that can do nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

from support.iam_template import ACCOUNT, REGION, Role, Template
from support.spark_stack import APPLICATION, ARN, QUEUES, Stacked, role, synthesized

ACTIONS = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject")
PASSED = {"iam:PassedToService": "emr-serverless.amazonaws.com"}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Stacked:
    return synthesized(tmp_path_factory.mktemp("scheduled"), schedule_pipeline=True)


@pytest.fixture(scope="module")
def schedules(template: Template) -> dict[str, dict[str, Any]]:
    """By the job that each of them starts."""
    found = template.of_type("AWS::Scheduler::Schedule").values()
    return {described(schedule)["tags"]["s3queue:job"]: schedule for schedule in found}


def described(schedule: dict[str, Any]) -> dict[str, Any]:
    """What Scheduler sends, as EMR's own model spells it."""
    given = json.loads(schedule["Target"]["Input"])

    def spelled(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        assert all(name[0].isupper() for name in value), value
        return {name[0].lower() + name[1:]: spelled(member) for name, member in value.items()}

    tags = given.pop("Tags")
    return spelled(given) | {"tags": tags}


def test_nothing_is_scheduled_unless_asked_for(tmp_path: Any) -> None:
    template = synthesized(tmp_path)
    assert not template.of_type("AWS::Scheduler::Schedule")
    assert not [id for id in template.of_type("AWS::IAM::Role") if "SchedulerRole" in id]
    assert not [id for id in template.of_type("AWS::CloudWatch::Alarm") if "PipelineNotStarted" in id]


def test_the_archive_runs_daily_and_statistics_hourly(schedules: dict[str, Any]) -> None:
    crons = {job: schedule["ScheduleExpression"] for job, schedule in schedules.items()}
    assert crons == {"archive": "cron(20 2 * * ? *)", "statistics": "cron(5 * * * ? *)"}
    for schedule in schedules.values():
        # The partition is GovCloud's in GovCloud; here the template is resolved as in `aws`.
        assert schedule["Target"]["Arn"] == "arn:aws:scheduler:::aws-sdk:emrserverless:startJobRun"
        # The next turn comes in an hour.
        assert schedule["Target"]["RetryPolicy"]["MaximumEventAgeInSeconds"] < 3600


def accept(request: dict[str, Any]) -> None:
    """As boto3 checks it, by EMR's own model."""
    model = ServiceModel(Loader().load_service_model("emr-serverless", "service-2"))
    report = ParamValidator().validate(request, model.operation_model("StartJobRun").input_shape)
    assert not report.has_errors(), report.generate_report()


@pytest.mark.parametrize("job", ["archive", "statistics"])
def test_a_schedule_sends_what_emr_accepts(schedules: dict[str, Any], job: str) -> None:
    request = described(schedules[job])
    # The token is filled in when it fires.
    accept(request | {"clientToken": "d32c5kddcf5bb8c3"})
    assert request["clientToken"] == "<aws.scheduler.execution-id>"
    assert request["applicationId"] == APPLICATION


@pytest.mark.parametrize("job", ["archive", "statistics"])
def test_a_scheduled_run_is_bounded_logged_and_named_and_knows_the_queues(
    template: Template, schedules: dict[str, Any], job: str
) -> None:
    request = described(schedules[job])
    submit = request["jobDriver"]["sparkSubmit"]
    assert request["executionTimeoutMinutes"] <= 180
    assert "--conf spark.dynamicAllocation.maxExecutors=4" in submit["sparkSubmitParameters"]
    assert "--py-files s3://" in submit["sparkSubmitParameters"]
    logs = request["configurationOverrides"]["monitoringConfiguration"]
    name = template.queue_bucket.rpartition(":")[2]
    assert logs["s3MonitoringConfiguration"]["logUri"] == f"s3://{name}/analytics/spark-logs/"
    assert logs["cloudWatchLoggingConfiguration"]["logGroupName"] == "/s3queue/s3queue/spark"
    first, *arguments = submit["entryPointArguments"]
    assert first == job
    upkeep = ["--upkeep", "--metric"] if job == "archive" else []
    assert arguments == ["--bucket", name, *upkeep, *(word for queue in sorted(QUEUES) for word in ("--queue", queue))]
    assert request["executionRoleArn"] == role(template, "HistoryRole").arn


def test_the_scheduler_starts_runs_of_this_application_with_the_history_role_and_does_nothing_else(
    template: Template, schedules: dict[str, Any]
) -> None:
    scheduler = role(template, "SchedulerRole")
    assert {schedule["Target"]["RoleArn"] for schedule in schedules.values()} == {scheduler.arn}
    assert scheduler.may("emr-serverless:StartJobRun", ARN)
    assert scheduler.may("emr-serverless:TagResource", f"{ARN}/jobruns/1")
    assert not scheduler.may("emr-serverless:StartJobRun", ARN.replace(APPLICATION, "00other"))
    assert not scheduler.may("emr-serverless:CancelJobRun", f"{ARN}/jobruns/1")
    assert scheduler.may("iam:PassRole", role(template, "HistoryRole").arn, PASSED)
    assert not scheduler.may("iam:PassRole", role(template, "HistoryRole").arn, {"iam:PassedToService": "ec2"})
    for other in ("JobRole", "BulkRole"):
        assert not scheduler.may("iam:PassRole", role(template, other).arn, PASSED)
    assert not any(scheduler.may(action, f"{template.queue_bucket}/emails/records/x") for action in ACTIONS)


def test_only_this_stacks_schedules_can_use_the_scheduler_role(template: Template, schedules: dict[str, Any]) -> None:
    (trust,) = [
        found["AssumeRolePolicyDocument"]["Statement"][0]
        for id, found in template.of_type("AWS::IAM::Role").items()
        if "SchedulerRole" in id
    ]
    assert trust["Principal"] == {"Service": "scheduler.amazonaws.com"}
    (group,) = {schedule["GroupName"] for schedule in schedules.values()}
    assert trust["Condition"]["StringEquals"] == {
        "aws:SourceAccount": ACCOUNT,
        "aws:SourceArn": f"arn:aws:scheduler:{REGION}:{ACCOUNT}:schedule-group/{group}",
    }


@pytest.mark.parametrize("name", ["HistoryRole", "BulkRole"])
def test_only_this_application_can_be_given_the_pipelines_roles(template: Template, name: str) -> None:
    (found,) = [found for id, found in template.of_type("AWS::IAM::Role").items() if name in id]
    (trust,) = found["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "emr-serverless.amazonaws.com"}
    assert trust["Condition"]["ArnLike"] == {"aws:SourceArn": ARN}


@pytest.mark.parametrize("jobs", ["History", "Bulk"])
def test_an_operator_finds_a_request_for_each_kind_of_job_among_the_outputs(template: Stacked, jobs: str) -> None:
    request = json.loads(template.output(f"{jobs}Request"))
    assert "clientToken" not in request, "the command line makes one"
    accept(request | {"clientToken": "made-by-the-command-line"})
    assert request["executionRoleArn"] == role(template, f"{jobs}Role").arn
    assert request["jobDriver"]["sparkSubmit"]["entryPointArguments"] == ["--help"]


def denied(who: Role, key: str) -> bool:
    conditional = {"s3:if-none-match": "*"}
    return not any(who.may(action, key, conditional) for action in ACTIONS)


def test_history_is_written_by_a_role_that_can_touch_no_message_and_take_back_no_commit(template: Template) -> None:
    history, at = role(template, "HistoryRole"), template.queue_bucket
    for kind in ("messages", "leases", "dead", "delayed", "bulk", "runs", "locks"):
        assert denied(history, f"{at}/emails/{kind}/x"), kind
    for action in ("s3:PutObject", "s3:DeleteObject"):
        assert not history.may(action, f"{at}/emails/records/messages/x", {"s3:if-none-match": "*"})
    for commit in ("_delta_log/00000000000000000001.json", "queue=emails/_log/0000000001.json"):
        assert not history.may("s3:DeleteObject", f"{at}/archive/{commit}")
    assert not history.may("s3:PutObject", f"{at}/archive/queue=emails/_log/0000000001.json", {"s3:if-none-match": "*"})
    assert denied(history, f"{at}/datasets/orders/1.csv")
    for prefix in ("", None, "emails/", "emails/messages/", "analytics/"):
        assert not history.may_list(at, prefix), prefix


def test_bulk_jobs_touch_no_lease_no_outcome_and_no_history(template: Template) -> None:
    bulk, at = role(template, "BulkRole"), template.queue_bucket
    for kind in ("runs", "locks", "workers"):
        assert denied(bulk, f"{at}/emails/{kind}/x"), kind
    # Of a group, it looks into the lease for an earlier replay.
    for kind in ("leases", "records", "results", "retries"):
        assert bulk.may("s3:GetObject", f"{at}/emails/{kind}/x"), kind
        for action in ("s3:PutObject", "s3:DeleteObject"):
            assert not bulk.may(action, f"{at}/emails/{kind}/x", {"s3:if-none-match": "*"}), kind
    # Of a queue that is replayed into, it reads what is published.
    assert bulk.may("s3:GetObject", f"{at}/emails/queue-settings.json")
    assert not bulk.may("s3:PutObject", f"{at}/emails/queue-settings.json", {"s3:if-none-match": "*"})
    assert not bulk.may("s3:PutObject", f"{at}/emails/records/messages/x", {"s3:if-none-match": "*"})
    assert not bulk.may("s3:PutObject", f"{at}/emails/delayed/20261116T101500Z/x", {"s3:if-none-match": "*"})
    assert not bulk.may("s3:DeleteObject", f"{at}/emails/messages/x")
    for key in (
        "archive/queue=emails/day=2026-11-16/x",
        "archive/_delta_log/0.json",
        "analytics/latest.json",
        "emails/queue.json",
    ):
        assert denied(bulk, f"{at}/{key}"), key
    assert not bulk.may_list(at, "")


def test_a_turn_that_was_given_up_raises_an_alarm(template: Template, schedules: dict[str, Any]) -> None:
    alarms = template.of_type("AWS::CloudWatch::Alarm").items()
    (alarm,) = [alarm for id, alarm in alarms if "PipelineNotStarted" in id]
    (dimension,) = alarm["Dimensions"]
    assert (alarm["Namespace"], alarm["MetricName"]) == ("AWS/Scheduler", "InvocationDroppedCount")
    assert dimension == {"Name": "ScheduleGroup", "Value": schedules["archive"]["GroupName"]}
    assert alarm["AlarmActions"]


def test_a_run_that_failed_is_told_to_the_alarms_topic(template: Template, tmp_path: Any) -> None:
    rule, *others = [
        rule
        for rule in template.of_type("AWS::Events::Rule").values()
        if rule.get("EventPattern", {}).get("detail", {}).get("state") == ["FAILED", "CANCELLED"]
    ]
    assert not others
    assert rule["EventPattern"]["detail"]["applicationId"] == [APPLICATION]
    (target,) = rule["Targets"]
    (alarm,) = [one for id, one in template.of_type("AWS::CloudWatch::Alarm").items() if "RunsFailed" in id]
    assert [target["Arn"]] == alarm["AlarmActions"]
    assert "<detail-jobRunId>" in target["InputTransformer"]["InputTemplate"]
    (policy,) = template.of_type("AWS::SNS::TopicPolicy").values()
    (allow,) = [
        statement
        for statement in policy["PolicyDocument"]["Statement"]
        if statement["Principal"] == {"Service": "events.amazonaws.com"}
    ]
    assert (allow["Action"], allow["Resource"]) == ("sns:Publish", target["Arn"])
    # EventBridge says neither account nor rule when it publishes: a condition would drop every notice.
    assert "Condition" not in allow
    # Heavy runs, and those that somebody starts by hand, without a schedule.
    unscheduled = synthesized(tmp_path)
    assert [id for id in unscheduled.of_type("AWS::Events::Rule") if "RunFailed" in id]
    assert not [id for id in unscheduled.of_type("AWS::CloudWatch::Alarm") if "ArchiveLate" in id]


def test_a_run_that_failed_raises_an_alarm_which_counts_what_the_rule_has_matched(template: Stacked) -> None:
    (rule,) = [id for id in template.of_type("AWS::Events::Rule") if "RunFailed" in id]
    (alarm,) = [one for id, one in template.of_type("AWS::CloudWatch::Alarm").items() if "RunsFailed" in id]
    assert (alarm["Namespace"], alarm["MetricName"], alarm["Statistic"]) == ("AWS/Events", "MatchedEvents", "Sum")
    (dimension,) = alarm["Dimensions"]
    assert dimension["Name"] == "RuleName"
    assert dimension["Value"] == rule.lower()
    assert (alarm["Threshold"], alarm["ComparisonOperator"]) == (0, "GreaterThanThreshold")


def test_the_sweeper_hears_of_every_run_that_ended_and_may_publish_it(template: Stacked) -> None:
    told = [
        rule
        for rule in template.of_type("AWS::Events::Rule").values()
        if "SUCCESS" in rule.get("EventPattern", {}).get("detail", {}).get("state", ())
    ]
    assert len(told) == 1


def test_an_archive_that_falls_behind_or_never_runs_raises_an_alarm_before_records_expire(
    template: Stacked, schedules: dict[str, Any]
) -> None:
    (alarm,) = [one for id, one in template.of_type("AWS::CloudWatch::Alarm").items() if "ArchiveLate" in id]
    kept = min(of.settings.record_retention for of in QUEUES.values()).total_seconds()
    assert (alarm["Namespace"], alarm["MetricName"]) == ("s3queue", "UnarchivedAge")
    assert alarm["Threshold"] < kept
    assert alarm["Period"] * alarm["EvaluationPeriods"] < kept
    # Nothing is published by a job that never runs.
    assert alarm["TreatMissingData"] == "breaching"
    assert "--metric" in schedules["archive"]["Target"]["Input"]
    (dimension,) = alarm["Dimensions"]
    assert f'"--bucket","{dimension["Value"]}"' in schedules["archive"]["Target"]["Input"]
    history = role(template, "HistoryRole")
    assert history.may("cloudwatch:PutMetricData", "*", {"cloudwatch:namespace": "s3queue"})
    assert not history.may("cloudwatch:PutMetricData", "*", {"cloudwatch:namespace": "AWS/Lambda"})


def test_a_bucket_without_heavy_queues_can_have_a_pipeline(tmp_path: Any) -> None:
    template = synthesized(tmp_path, queues={"emails": QUEUES["emails"]}, schedule_pipeline=True)
    assert len(template.of_type("AWS::Scheduler::Schedule")) == 2
    assert "S3QUEUE_SPARK_APPLICATION" not in template.function("s3queue-emails")["Environment"]["Variables"]


def test_the_schedule_is_a_choice_of_the_command_line_and_refused_where_it_cannot_be_kept() -> None:
    from aws_cdk import App

    from infra.options import Options

    def options(**context: str) -> Options:
        return Options.from_context(App(context=context).node)

    assert not options().schedule_pipeline
    assert options(schedule_pipeline="true").schedule_pipeline
    assert options(schedule_pipeline="true").keep_data
    with pytest.raises(ValueError, match="schedule_pipeline=yes"):
        options(schedule_pipeline="yes")
    with pytest.raises(ValueError, match="emulator"):
        options(schedule_pipeline="true", target="local")
