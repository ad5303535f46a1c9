"""What cdk-nag (AwsSolutions) finds and we mean: each with where, and why. Anything else it finds fails the synth."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from aws_cdk import Acknowledgment, Names, Stack, Validations
from aws_cdk import aws_s3 as s3
from constructs import IConstruct

from s3queue.keys import Keys

from .constructs.spark_runs import SparkRuns
from .permissions import (
    API,
    API_DENIED,
    API_FLOW_CHANGES,
    API_FLOWS,
    API_PATTERNS,
    BULK,
    BULK_DATA,
    BULK_PATTERNS,
    DRIVER,
    FLOW_DATA,
    FLOW_MARKERS,
    FOUND_FLOW_DATA,
    FOUND_FLOW_MARKERS,
    FOUND_OUTBOX,
    FOUND_SENDS,
    HISTORY,
    HISTORY_DATA,
    JOB_DATA,
    LAUNCHER,
    LIMITED,
    OUTBOX,
    SENDER,
    SPARK_LOGS,
    SWEEPER,
    WORKER,
)
from .queue_stack import QueueStack


class Finding(NamedTuple):
    rule: str
    #: Path below the stack; empty: all of it.
    where: str
    reason: str


FINDINGS = (
    Finding(
        "AwsSolutions-S1",
        "Storage/Bucket",
        "Every message has a record of its own; a line of access log for each of its four requests would cost more to "
        "keep than the queue. Audits switch on CloudTrail data events.",
    ),
    Finding(
        "AwsSolutions-S1",
        "Storage/FailedEvents",
        "Written by Lambda alone, when an invocation fails; objects expire after two weeks.",
    ),
    Finding(
        "AwsSolutions-L1",
        "",
        "python3.13 on purpose: the version that the wheels in the zip are built for, and that EMR Serverless has too.",
    ),
)
TRACING_FINDINGS = (
    Finding(
        "AwsSolutions-IAM5[Resource::*]",
        "",
        "xray:PutTraceSegments and xray:PutTelemetryRecords know no resources; tests/infra proves that nothing else "
        "uses it.",
    ),
)
LOCAL_FINDINGS = (
    Finding("AwsSolutions-S10", "Storage", "An emulator on 127.0.0.1 speaks plain HTTP; `target=aws` requires TLS."),
)
OWN_PREFIX = "A prefix of this queue alone: its objects are named by whoever enqueues them."
ALL_PREFIXES = "Prefixes of the queues, each by its name and with the actions that the sweep needs."
SHOWN_PREFIXES = "Prefixes of the queues, each by its name: operators look at all of them, and enqueue and replay."
JOB_PREFIXES = "The heavy queues, each by its name, and the prefixes of the data that Spark jobs work on."
PIPELINE_PREFIXES = "The queues, each by its name, and the prefixes that history is written to and datasets lie in."
OWN_RUNS = "The runs of this one application: EMR names them when they start."
OWN_METRICS = "CloudWatch's metrics have no ARN; a condition holds whoever publishes to the namespace s3queue."
LOG_GROUPS = "EMR looks for a run's log group by listing them, which cannot be allowed for a single one."
OWN_FAILURES = "Lambda names the records of this function's failed invocations by date, below this prefix."


def acknowledge(stack: QueueStack) -> None:
    """Record on each construct what is accepted there; a queue's role that reached for another queue is not."""
    options = stack.options
    found = FINDINGS + (TRACING_FINDINGS if options.tracing else ())
    for rule, where, reason in found + (LOCAL_FINDINGS if options.target == "local" else ()):
        if where == "Storage/Bucket" and not isinstance(stack.storage.bucket, s3.Bucket):
            continue  # its owner's
        _acknowledge(_descendant(stack, where), [rule], reason)
    bucket, failed_events = stack.storage.bucket, stack.storage.failed_events
    for name, queue in stack.queues.items():
        is_heavy = stack.spark_runs is not None and name in stack.spark_runs.queues
        kinds = {**WORKER, **({} if is_heavy else LIMITED), **(OUTBOX if queue.sends_to else {})}
        kinds |= FLOW_MARKERS if queue.flows else {}
        prefixes = [*(Keys(name).prefix(kind) for kind in kinds), *(FLOW_DATA if queue.flows else ())]
        prefixes += [Keys(target).prefix(kind) for target in queue.sends_to for kind in SENDER]
        _acknowledge_prefixes(queue, bucket, prefixes, OWN_PREFIX)
        if queue.worker:
            _acknowledge_prefixes(queue, failed_events, [queue.failures_prefix], OWN_FAILURES)
    if stack.spark_runs:
        _acknowledge_spark_runs(stack, stack.spark_runs)
    for sweeper in stack.sweepers:
        everywhere = [Keys(name).prefix(kind) for name in sweeper.queues for kind in SWEEPER]
        sending = {name: stack.queues[name].sends_to for name in sweeper.queues if stack.queues[name].sends_to}
        everywhere += [Keys(name).prefix(kind) for name in sending for kind in FOUND_OUTBOX]
        everywhere += [Keys(to).prefix(kind) for targets in sending.values() for to in targets for kind in FOUND_SENDS]
        flows = [name for name in sweeper.queues if stack.queues[name].flows]
        everywhere += [Keys(name).prefix(kind) for name in flows for kind in (*FOUND_FLOW_MARKERS, *FOUND_SENDS)]
        _acknowledge_prefixes(sweeper, bucket, [*everywhere, *(FOUND_FLOW_DATA if flows else ())], ALL_PREFIXES)
    shown: list[str] = []
    for keys in map(Keys, stack.queues):
        shown += [keys.root, *(keys.root + one.removesuffix("*") for one in API_PATTERNS)]
        shown += map(keys.prefix, (*API, *API_DENIED))
    has_flows = any(queue.flows for queue in stack.queues.values())
    shown += [*API_FLOWS, *(API_FLOW_CHANGES if has_flows else ())]
    _acknowledge_prefixes(stack.api, bucket, shown, SHOWN_PREFIXES)


def _acknowledge_spark_runs(stack: QueueStack, spark_runs: SparkRuns) -> None:
    bucket = stack.storage.bucket
    own = [Keys(name).prefix(kind) for name in spark_runs.queues for kind in {**WORKER, **DRIVER}]
    sends_to = {name: stack.queues[name].sends_to for name in spark_runs.queues}
    own += [Keys(name).prefix(kind) for name, targets in sends_to.items() if targets for kind in OUTBOX]
    own += [Keys(to).prefix(kind) for targets in sends_to.values() for to in targets for kind in SENDER]
    flows = [name for name in spark_runs.queues if stack.queues[name].flows]
    own += [*(Keys(name).prefix(kind) for name in flows for kind in FLOW_MARKERS), *(FLOW_DATA if flows else ())]
    _acknowledge_prefixes(spark_runs, bucket, [*own, *JOB_DATA], JOB_PREFIXES)
    for name in spark_runs.queues:
        launched = [Keys(name).prefix(kind) for kind in LAUNCHER]
        _acknowledge_prefixes(stack.queues[name], bucket, launched, OWN_PREFIX)
        for sweeper in stack.sweepers:
            _acknowledge_prefixes(sweeper, bucket, launched, ALL_PREFIXES)
    pipeline = stack.pipeline
    assert pipeline
    for role, table, patterns, data in (
        (pipeline.history_role, HISTORY, (), HISTORY_DATA),
        (pipeline.bulk_role, BULK, BULK_PATTERNS, BULK_DATA),
    ):
        own = [Keys(name).prefix(kind) for name in pipeline.queues for kind in table]
        own += [Keys(name).root + one.removesuffix("*") for name in pipeline.queues for one in patterns]
        _acknowledge_prefixes(role, bucket, [*own, *data, *SPARK_LOGS], PIPELINE_PREFIXES)
    if pipeline.group:
        _acknowledge(pipeline.history_role, ["AwsSolutions-IAM5[Resource::*]"], OWN_METRICS)
    groups = "arn:<AWS::Partition>:logs:<AWS::Region>:<AWS::AccountId>:log-group:*"
    for runs in (spark_runs, pipeline):
        _acknowledge(runs, [f"AwsSolutions-IAM5[Resource::{groups}]"], LOG_GROUPS)
    launchers = (*stack.sweepers, pipeline, *(stack.queues[name] for name in spark_runs.queues))
    for construct in launchers:
        _acknowledge(construct, [f"AwsSolutions-IAM5[Resource::{_runs_of(stack, spark_runs)}]"], OWN_RUNS)


def _runs_of(stack: QueueStack, spark_runs: SparkRuns) -> str:
    """The runs' ARN as cdk-nag writes it, with what only CloudFormation knows in its own words."""
    application = stack.resolve(spark_runs.application)
    named = application if isinstance(application, str) else json.dumps(application, separators=(",", ":"))
    where = "arn:<AWS::Partition>:emr-serverless:<AWS::Region>:<AWS::AccountId>"
    return f"{where}:/applications/{named}/jobruns/*"


def _acknowledge(construct: IConstruct, rules: Iterable[str], reason: str) -> None:
    Validations.of(construct).acknowledge(*(Acknowledgment(id=rule, reason=reason) for rule in rules))


def _acknowledge_prefixes(construct: IConstruct, bucket: s3.IBucket, prefixes: Iterable[str], reason: str) -> None:
    default = bucket.node.default_child
    if default is None:
        arn = f"arn:<AWS::Partition>:s3:::{bucket.bucket_name}"
    elif not isinstance(default, s3.CfnBucket):
        raise TypeError(f"{default.node.path} is no bucket")
    elif Stack.of(construct) == Stack.of(bucket):
        arn = f"<{Stack.of(bucket).get_logical_id(default)}.Arn>"
    else:
        # A nested stack gets it as a parameter.
        arn = f"<referenceto{Names.node_unique_id(default.node)}Arn>"
    _acknowledge(construct, [f"AwsSolutions-IAM5[Resource::{arn}/{prefix}*]" for prefix in prefixes], reason)


def _descendant(stack: QueueStack, where: str) -> IConstruct:
    construct: IConstruct = stack
    for id in where.split("/") if where else ():
        construct = construct.node.find_child(id)
    return construct
