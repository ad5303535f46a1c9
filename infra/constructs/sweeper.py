"""The sweeper: once a minute, everything that was forgotten is found again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aws_cdk import Duration, Stack
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from constructs import Construct

from s3queue.deployment import QUEUES_PER_SWEEPER, SWEEPER_MIB, Deployment

from ..options import Options
from ..permissions import sweeper_statements
from .functions import QueueFunction
from .s3_queue import DEFAULT_BUS, S3Queue, put_events
from .spark_runs import SparkRuns

EVERY = Duration.minutes(1)
#: It looks one minute ahead and waits; what is left over finds the last due message still being dispatched.
TIMEOUT = Duration.seconds(90)
#: One minute may run into the next, and two at once are safe. Reserved, so that a burst of workers cannot starve it.
CONCURRENCY = 2


def shares(queues: Sequence[str]) -> list[list[str]]:
    """Which queues each sweeper function has; one function has all of them unless there are many."""
    count = -(-len(queues) // QUEUES_PER_SWEEPER)
    return [list(queues[first::count]) for first in range(count)]


class Sweeper(Construct):
    """One function for many queues; it may wake exactly their workers. Of several, each has a number."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        queues: Mapping[str, S3Queue],
        bucket: s3.IBucket,
        code: lambda_.Code,
        options: Options,
        number: int = 1,
        spark_runs: SparkRuns | None = None,
        publishes_runs: bool = False,
    ) -> None:
        """`publishes_runs`: this one publishes that a Spark run has failed. Each of several may hear of it."""
        super().__init__(scope, id)
        self.queues = tuple(queues)
        heavy = [name for name in queues if spark_runs and name in spark_runs.queues]
        told = spark_runs if heavy or number == 1 else None
        publishes_runs = publishes_runs and told is not None
        spark_runs = spark_runs if heavy else None
        publishes = any(queue.settings.events != "off" for queue in queues.values())
        sweeper = QueueFunction(
            self,
            "Sweeper",
            # With an underscore, or a queue called sweeper would want the same name.
            name=f"{Stack.of(self).stack_name}_sweeper{'' if number == 1 else f'_{number}'}",
            description="Finds expired leases, due messages and lost events, every minute",
            handler="handlers.sweeper.handle",
            code=code,
            deployment=Deployment(
                bucket=bucket.bucket_name,
                workers={name: queue.worker_name for name, queue in queues.items()},
                event_bus=DEFAULT_BUS if publishes else "",
                run_event_bus=DEFAULT_BUS if publishes_runs else "",
                **(spark_runs.environment() if spark_runs else {}),
            ),
            statements=[
                *sweeper_statements(
                    bucket,
                    {name: queue.sends_to for name, queue in queues.items()},
                    heavy=heavy,
                    flows=[name for name, queue in queues.items() if queue.flows],
                ),
                *(spark_runs.launch_statements() if spark_runs else []),
                *(
                    iam.PolicyStatement(
                        actions=["lambda:InvokeFunction"], resources=[queue.worker.function.function_arn]
                    )
                    for queue in queues.values()
                    if queue.worker
                ),
                *([put_events(self)] if publishes or publishes_runs else []),
            ],
            timeout=TIMEOUT,
            memory_mib=SWEEPER_MIB,
            concurrency=CONCURRENCY,
            options=options,
        )
        self.function = sweeper.function
        # A tick that comes late is worth nothing: the next one does the same work.
        self.function.configure_async_invoke(retry_attempts=0, max_event_age=EVERY)
        self.schedule = events.Rule(
            self,
            "EveryMinute",
            description="Wakes the sweeper",
            schedule=events.Schedule.rate(EVERY),
            targets=[targets.LambdaFunction(self.function, retry_attempts=0, max_event_age=EVERY)],
        )
        if told:
            told.tell(self, self.function)
