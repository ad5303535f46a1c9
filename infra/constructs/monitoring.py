"""Alarms that ask for a person, and a dashboard for the person who comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from aws_cdk import CfnOutput, Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from constructs import Construct

from s3queue.deployment import METRICS, Metrics

from .functions import SERVICE
from .pipeline import Pipeline
from .s3_queue import S3Queue

#: How long a message may wait, beyond one whole visibility timeout, before someone should look.
TOO_OLD = timedelta(minutes=15)
FIVE_MINUTES = Duration.minutes(5)
#: CloudWatch shows no more in one.
ALARMS_PER_WIDGET = 100
RUN_FAILED = (
    "RunFailed: Spark run {jobRunId} of application {applicationId} is {state}. Read its log. Messages of a heavy run "
    "are tried again; of archive and statistics, the next turn does what is left, but records expire."
)
NOT_STARTED = (
    "Archive or statistics could not be started for half an hour. The next turn does what is left, but records expire: "
    "look at the application's quota, and at the scheduler role."
)


class Monitoring(Construct):
    """Every alarm says in its description what to do; subscribe to `topic` to hear of them."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        queues: Mapping[str, S3Queue],
        sweepers: Sequence[lambda_.IFunction],
        metrics: Metrics,
        pipeline: Pipeline | None = None,
        key: kms.IKey | None = None,
    ) -> None:
        super().__init__(scope, id)
        #: What the functions publish; nothing else is watched or drawn.
        self._published = METRICS[metrics]
        self.topic = self._topic(key)
        self.alarms = [
            alarm for number, sweeper in enumerate(sweepers, 1) for alarm in self._sweeper_alarms(sweeper, number)
        ]
        if pipeline and (dropped := pipeline.dropped()):
            self.alarms.append(self._alarm("PipelineNotStarted", dropped, 0, NOT_STARTED))
        if pipeline and (unarchived := pipeline.unarchived()):
            self.alarms.append(self._archive_late(unarchived, queues))
        if pipeline:
            self.alarms.append(self._tell_of_runs(pipeline.failed()))
        for name, queue in queues.items():
            self.alarms += self._queue_alarms(name, queue)
        for alarm in self.alarms:
            alarm.add_alarm_action(actions.SnsAction(self.topic))
        self._dashboard(queues, sweepers)
        CfnOutput(self, "AlarmTopic", value=self.topic.topic_arn)

    def _topic(self, key: kms.IKey | None) -> sns.Topic:
        named = f"{Stack.of(self).stack_name} alarms"
        topic = sns.Topic(self, "Alarms", display_name=named, enforce_ssl=True, master_key=key)
        # enforce_ssl replaces the policy that SNS gives a topic by default, and with it CloudWatch's permission.
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                actions=["sns:Publish"],
                resources=[topic.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": Stack.of(self).account}},
            )
        )
        return topic

    def _archive_late(self, unarchived: cloudwatch.IMetric, queues: Mapping[str, S3Queue]) -> cloudwatch.Alarm:
        """Half of the shortest retention before records are lost, whether the archive left them or never ran."""
        kept = min(queue.settings.record_retention for queue in queues.values())
        return cloudwatch.Alarm(
            self,
            "ArchiveLate",
            metric=unarchived,
            threshold=kept.total_seconds() / 2,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
            # A night may fail. No night at all is no data at all.
            evaluation_periods=2,
            datapoints_to_alarm=2,
            treat_missing_data=cloudwatch.TreatMissingData.BREACHING,
            alarm_description="Records wait for the archive, and expire unless it takes them. `s3queue archive show` "
            "says how many and until when; read the log of its last run, and start it again.",
        )

    def _tell_of_runs(self, failed: events.EventPattern) -> cloudwatch.Alarm:
        """Straight to the topic, with the run's id, and as an alarm that can be looked at. It counts what the rule has
        matched: EMR's own metrics say nothing while its application is stopped.

        The topic's policy lets EventBridge in without a condition, as CDK writes it: EventBridge says neither account
        nor rule when it publishes, so that a condition would drop every notice (AWS documents this).
        """
        told = {
            name: events.EventField.from_path(f"$.detail.{name}") for name in ("jobRunId", "applicationId", "state")
        }
        text = events.RuleTargetInput.from_text(RUN_FAILED.format(**told))
        rule = events.Rule(self, "RunFailed", description="Tells of Spark runs that failed", event_pattern=failed)
        rule.add_target(targets.SnsTopic(self.topic, message=text))
        matched = cloudwatch.Metric(
            namespace="AWS/Events",
            metric_name="MatchedEvents",
            dimensions_map={"RuleName": rule.rule_name},
            statistic="Sum",
            period=FIVE_MINUTES,
        )
        return self._alarm(
            "RunsFailed",
            matched,
            0,
            "A Spark run failed or was cancelled; the notice RunFailed names it. Read its log. Messages of a heavy run "
            "are tried again; of archive and statistics, the next turn does what is left, but records expire.",
        )

    def _sweeper_alarms(self, sweeper: lambda_.IFunction, number: int) -> list[cloudwatch.Alarm]:
        which = "" if number == 1 else str(number)
        # Two plain alarms, not one on `invocations - errors`: the emulator that runs this stack knows no metric math.
        silent = cloudwatch.Alarm(
            self,
            f"SweeperSilent{which}",
            metric=sweeper.metric_invocations(statistic="Sum", period=FIVE_MINUTES),
            threshold=1,
            comparison_operator=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            evaluation_periods=1,
            treat_missing_data=cloudwatch.TreatMissingData.BREACHING,
            alarm_description="No sweep for 5 minutes: retries, delays and lost events wait. "
            "Check that the sweeper's schedule is enabled and that it is not throttled.",
        )
        failing = self._alarm(
            f"SweeperFailing{which}",
            sweeper.metric_errors(statistic="Sum", period=FIVE_MINUTES),
            3,
            "the sweeper fails most of its sweeps: retries, delays and lost events wait. Read its log.",
        )
        return [silent, failing]

    def _queue_alarms(self, name: str, queue: S3Queue) -> list[cloudwatch.Alarm]:
        """In the queue's own stack: five of each would not fit into one."""
        return [*(self._own_alarms(name, queue) if self._published else ()), *self._lambda_alarms(name, queue)]

    def _own_alarms(self, name: str, queue: S3Queue) -> list[cloudwatch.Alarm]:
        return [
            self._alarm(
                f"OldestTooOld-{name}",
                queue_metric("AgeOfOldest", name, "Maximum", Duration.minutes(1)),
                (queue.settings.visibility_timeout + TOO_OLD).total_seconds(),
                f"{name}: the oldest runnable message waits too long. Is the queue paused? Does every handler fail? "
                "Else raise its concurrency.",
                periods=3,
                scope=queue,
            ),
            self._alarm(
                f"TooManyPending-{name}",
                queue_metric("Pending", name, "Maximum", Duration.minutes(1)),
                queue.settings.pending_alarm,
                f"{name}: more messages are pending than its pending_alarm. Producers send faster than the queue "
                "works: raise its concurrency, or slow them down (max_depth).",
                periods=5,
                scope=queue,
            ),
            self._alarm(
                f"DeadLetters-{name}",
                queue_metric("Dead", name, "Sum"),
                0,
                f"{name}: messages died. `s3queue dead list` groups them by error; fix the cause, then replay.",
                scope=queue,
            ),
        ]

    def _lambda_alarms(self, name: str, queue: S3Queue) -> list[cloudwatch.Alarm]:
        if queue.worker is None:
            return []
        function = queue.worker.function
        return [
            self._alarm(
                f"EventsDropped-{name}",
                function.metric("AsyncEventsDropped", statistic="Sum", period=FIVE_MINUTES),
                0,
                f"{name}: Lambda gave up on an invocation: a crash, a time-out, or six hours of throttling. The "
                "sweeper finds its messages again; the bucket of failed events says why it happened.",
                scope=queue,
            ),
            # A burst behind a concurrency limit is throttled, and drains: only what lasts is worth a person.
            self._alarm(
                f"Throttled-{name}",
                function.metric_throttles(statistic="Sum", period=FIVE_MINUTES),
                0,
                f"{name}: throttled for 15 minutes on end. Raise its concurrency, or the account's limit.",
                periods=3,
                scope=queue,
            ),
        ]

    def _alarm(
        self,
        id: str,
        metric: cloudwatch.IMetric,
        above: float,
        description: str,
        *,
        periods: int = 1,
        scope: Construct | None = None,
    ) -> cloudwatch.Alarm:
        return cloudwatch.Alarm(
            scope or self,
            id,
            metric=metric,
            threshold=above,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
            evaluation_periods=periods,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
            alarm_description=description,
        )

    def _dashboard(self, queues: Mapping[str, S3Queue], sweepers: Sequence[lambda_.IFunction]) -> None:
        dashboard = cloudwatch.Dashboard(
            self, "Dashboard", dashboard_name=Stack.of(self).stack_name, default_interval=Duration.hours(3)
        )
        dashboard.add_widgets(
            *(
                cloudwatch.AlarmStatusWidget(
                    title="Alarms", width=12, height=6, alarms=list(self.alarms[at : at + ALARMS_PER_WIDGET])
                )
                for at in range(0, len(self.alarms), ALARMS_PER_WIDGET)
            ),
            cloudwatch.GraphWidget(
                title="Sweeper",
                width=12,
                left=[metric for one in sweepers for metric in (one.metric_invocations(), one.metric_errors())],
                right=[one.metric_duration(statistic="Maximum") for one in sweepers],
            ),
        )
        for name, queue in queues.items():
            dashboard.add_widgets(*self._queue_row(name, queue))

    def _queue_row(self, name: str, queue: S3Queue) -> list[cloudwatch.IWidget]:
        drawn = {
            "outcomes": (
                ("Completed", "Failed", "Retried", "Dead", "Rescued", "ClaimConflicts", "LateEvents"),
                ["Sum"],
            ),
            "oldest": (("AgeOfOldest",), ["Maximum"]),
            "pending": (("Pending",), ["Maximum"]),
            "wait and run": (("WaitTime", "RunTime"), ["p50", "p99"]),
        }
        own = {
            title: [
                queue_metric(metric, name, of) for metric in metrics if metric in self._published for of in statistics
            ]
            for title, (metrics, statistics) in drawn.items()
        }
        counted = ("Invocations", "Throttles", "Errors", "DestinationDeliveryFailures") if queue.worker else ()
        concurrent = [function_metric("ConcurrentExecutions", queue, "Maximum")] if queue.worker else []
        invocations = [*concurrent, *(function_metric(metric, queue) for metric in counted)]
        # Age and depth in one: with five widgets for each of a hundred queues, a dashboard has no room for the alarms.
        sides: dict[str, tuple[list[cloudwatch.Metric], list[cloudwatch.Metric]]] = {
            "outcomes": (own["outcomes"], []),
            "oldest and pending messages": (own["oldest"], own["pending"]),
            "wait and run": (own["wait and run"], []),
            "invocations": (invocations, []),
        }
        return [
            cloudwatch.GraphWidget(title=f"{name}: {title}", width=6, left=left, right=right)
            for title, (left, right) in sides.items()
            if left or right
        ]


def queue_metric(name: str, queue: str, statistic: str, period: Duration = FIVE_MINUTES) -> cloudwatch.Metric:
    """A metric that the functions write (EMF); the dimensions must be theirs to the letter, or it is always empty."""
    return cloudwatch.Metric(
        namespace=SERVICE,
        metric_name=name,
        dimensions_map={"queue": queue},
        statistic=statistic,
        period=period,
    )


def function_metric(name: str, queue: S3Queue, statistic: str = "Sum") -> cloudwatch.Metric:
    """What Lambda counts of a worker; by its name, because a reference to another stack makes the template long."""
    return cloudwatch.Metric(
        namespace="AWS/Lambda",
        metric_name=name,
        dimensions_map={"FunctionName": queue.worker_name},
        statistic=statistic,
        period=FIVE_MINUTES,
    )
