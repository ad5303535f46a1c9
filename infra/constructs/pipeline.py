"""The pipeline's place in the stack: what its jobs may do, and when they run if someone asks for a schedule.

Nothing here is needed for a queue to work. Jobs are safe to repeat and to run twice at once, so a schedule may fire
late, twice or not at all: the next run does what is left. That is why a delivery that failed for good goes to an alarm
and not to a dead-letter queue: there is nothing in it to replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aws_cdk import CfnOutput, Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_scheduler as scheduler
from constructs import Construct

from s3queue.archive.expiry import BUCKET, METRICS_OF, UNARCHIVED
from s3queue.deployment import Deployment
from s3queue.spark_runs.emr_serverless import start_job_run

from ..permissions import bulk_statements, history_statements
from .spark_runs import SparkRuns

SERVICE = "scheduler.amazonaws.com"
#: By which a scheduled run is known again; it belongs to no queue.
JOB_TAG = "s3queue:job"
#: A driver and as many executors of 2 vCPU each: within the 16 that an account has, beside a run of heavy messages.
MAX_EXECUTORS = 4
#: Ten million rows take hours.
BULK_MINUTES = 720
#: A throttled StartJobRun is repeated; what is refused for longer can wait for the next turn.
RETRIES, RETRIED_FOR_SECONDS = 5, 1800
STARTED_BY_HAND = "For aws emr-serverless start-job-run --cli-input-json, with entryPointArguments of your own"


@dataclass(frozen=True, slots=True)
class Turn:
    """When a job runs, in UTC, and for how long at most."""

    job: str
    cron: str
    minutes: int
    options: tuple[str, ...] = ()


TURNS = (
    # Records are kept for days, five unless told otherwise: a night or two may fail without a loss.
    # With its upkeep: what a night adds is small, and a day's files are merged when it is over.
    Turn("archive", "cron(20 2 * * ? *)", 180, ("--upkeep", "--metric")),
    Turn("statistics", "cron(5 * * * ? *)", 50),
)


class Pipeline(Construct):
    """Two roles, apart from that of heavy messages: one reads outcomes and writes history, one writes messages."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        spark_runs: SparkRuns,
        queues: Sequence[str],
        bucket: s3.IBucket,
        scheduled: bool,
    ) -> None:
        super().__init__(scope, id)
        self.queues = tuple(queues)
        self._spark_runs, self._bucket = spark_runs, bucket
        #: Of archive and statistics.
        self.history_role = spark_runs.job_role(
            self,
            "HistoryRole",
            "Archives outcomes and counts them",
            [*history_statements(bucket, queues), *([put_metrics()] if scheduled else [])],
        )
        #: Of bulk enqueue and replay, which an operator starts.
        self.bulk_role = spark_runs.job_role(
            self, "BulkRole", "Enqueues datasets, replays dead letters", bulk_statements(bucket, queues)
        )
        #: None: nothing runs by itself.
        self.group = self._schedule() if scheduled else None
        # Whoever starts a job gives it a token and arguments of its own.
        for id, role, minutes in (
            ("HistoryRequest", self.history_role, TURNS[0].minutes),
            ("BulkRequest", self.bulk_role, BULK_MINUTES),
        ):
            job = id.removesuffix("Request").lower()
            request = self._request(role, job, minutes, token="", name=job, arguments=["--help"])
            del request["clientToken"]
            CfnOutput(self, id, description=STARTED_BY_HAND, value=Stack.of(self).to_json_string(request))

    def dropped(self) -> cloudwatch.IMetric | None:
        """Turns that Scheduler gave up on; None if there are no turns."""
        if self.group is None:
            return None
        return cloudwatch.Metric(
            namespace="AWS/Scheduler",
            metric_name="InvocationDroppedCount",
            dimensions_map={"ScheduleGroup": str(self.group.name)},
            statistic="Sum",
            period=Duration.minutes(5),
        )

    def failed(self) -> events.EventPattern:
        """Runs that failed, whoever started them: of heavy messages, scheduled, or by hand. An event does not say what
        a run was for."""
        return self._spark_runs.ended("FAILED", "CANCELLED")

    def unarchived(self) -> cloudwatch.IMetric | None:
        """The age of the oldest record that the last archive job left; None if there are no turns."""
        if self.group is None:
            return None
        return cloudwatch.Metric(
            namespace=METRICS_OF,
            metric_name=UNARCHIVED,
            dimensions_map={BUCKET: self._bucket.bucket_name},
            statistic="Maximum",
            period=Duration.days(1),
        )

    def _schedule(self) -> scheduler.CfnScheduleGroup:
        stack = Stack.of(self)
        # Its name is part of the role's condition, and of the metric.
        group = scheduler.CfnScheduleGroup(self, "Schedules", name=stack.stack_name)
        role = iam.Role(
            self,
            "SchedulerRole",
            description="Starts archive and statistics",
            assumed_by=iam.ServicePrincipal(
                SERVICE,
                conditions={
                    "StringEquals": {
                        "aws:SourceAccount": stack.account,
                        "aws:SourceArn": stack.format_arn(
                            service="scheduler", resource="schedule-group", resource_name=stack.stack_name
                        ),
                    }
                },
            ),
        )
        for statement in self._spark_runs.start_statements(self.history_role):
            role.add_to_policy(statement)
        for turn in TURNS:
            schedule = scheduler.CfnSchedule(
                self,
                turn.job.capitalize(),
                group_name=group.name,
                description=f"s3queue: {turn.job} of every queue",
                schedule_expression=turn.cron,
                schedule_expression_timezone="UTC",
                flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(mode="OFF"),
                target=scheduler.CfnSchedule.TargetProperty(
                    arn=f"arn:{stack.partition}:scheduler:::aws-sdk:emrserverless:startJobRun",
                    role_arn=role.role_arn,
                    input=stack.to_json_string(as_target_input(self._turn(turn))),
                    retry_policy=scheduler.CfnSchedule.RetryPolicyProperty(
                        maximum_retry_attempts=RETRIES, maximum_event_age_in_seconds=RETRIED_FOR_SECONDS
                    ),
                ),
            )
            # Or the first turn might be refused.
            schedule.node.add_dependency(group, role)
        return group

    def _turn(self, turn: Turn) -> dict[str, Any]:
        # The queues by name: a role that may not list the whole bucket cannot find them itself.
        named = [argument for queue in self.queues for argument in ("--queue", queue)]
        return self._request(
            self.history_role,
            turn.job,
            turn.minutes,
            # The same for a delivery that is repeated, so that it starts one run; were it not, two runs at once are
            # safe. The scheduled time would be surer, but a token takes no colons.
            token="<aws.scheduler.execution-id>",
            name=f"{turn.job} <aws.scheduler.scheduled-time>",
            arguments=[turn.job, "--bucket", self._bucket.bucket_name, *turn.options, *named],
        )

    def _request(self, role: iam.IRole, job: str, minutes: int, **request: Any) -> dict[str, Any]:
        known = self._spark_runs.environment(role=role, entry_point=self._spark_runs.pipeline)
        deployment = Deployment(bucket=self._bucket.bucket_name, workers={}, **known)
        tags = {JOB_TAG: job}
        return start_job_run(deployment, minutes=minutes, max_executors=MAX_EXECUTORS, tags=tags, **request)


def put_metrics() -> iam.PolicyStatement:
    """Metrics of ours. They have no ARN: whoever may publish is held to a namespace."""
    return iam.PolicyStatement(
        actions=["cloudwatch:PutMetricData"],
        resources=["*"],
        conditions={"StringEquals": {"cloudwatch:namespace": METRICS_OF}},
    )


def as_target_input(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request as Scheduler's universal targets take it: members begin with a capital letter, a map's keys do not."""

    def described(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name[0].upper() + name[1:]: described(member) for name, member in value.items()}
        return value

    members: dict[str, Any] = described(request)
    return members | {"Tags": dict(request["tags"])}
