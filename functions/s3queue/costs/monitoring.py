"""What watching costs: metrics, alarms and traces of a month, as lines of a bill."""

from __future__ import annotations

from s3queue.deployment import ALARM_METRICS, METRICS

from .estimate import Function
from .lines import SECONDS, Line
from .prices import PRICES
from .workload import Workload

#: Alarms of a queue that watch its own metrics, alarms of a queue on Lambda's metrics, and those of a sweeper.
OWN_ALARMS, LAMBDA_ALARMS, SWEEPER_ALARMS = len(ALARM_METRICS), 2, 2
#: What an operator of SQS would watch: the age of the oldest message, dead letters, the function's errors.
SQS_ALARMS = 3
#: Measured: the line with the metrics of one invocation, which is how they reach CloudWatch.
EMF_BYTES = 300
#: X-Ray's default rule: one request a second, and one in twenty of the others.
SAMPLED_PER_SECOND, SAMPLED_SHARE = 1.0, 0.05
GB = 1000**3


def watching(load: Workload, *functions: Function) -> list[Line]:
    """Of s3queue: these functions are traced, if traces are switched on."""
    own = len(METRICS[load.metrics])
    alarms = SWEEPER_ALARMS * load.sweepers + load.queues * ((OWN_ALARMS if own else 0) + LAMBDA_ALARMS)
    lines = [
        Line(
            what="CloudWatch: metrics",
            how=f"{own} per queue: metrics={load.metrics}",
            count=own * load.queues,
            price=PRICES.cloudwatch_metric,
            unit="metrics",
            per=1,
        ),
        _alarms(alarms),
        *traces(load, *functions),
    ]
    if load.metrics == "all":
        lines.append(
            Line(
                what="CloudWatch: metrics' log lines",
                how="one per invocation",
                count=functions[0].invocations * SECONDS * EMF_BYTES / GB,
                price=PRICES.cloudwatch_logs,
                unit="GBs",
                per=1,
            )
        )
    return lines


def sqs_watching(load: Workload, worker: Function) -> list[Line]:
    """Of SQS, whose metrics are free."""
    return [_alarms(SQS_ALARMS * load.queues), *traces(load, worker)]


def traces(load: Workload, *functions: Function) -> list[Line]:
    if not load.tracing:
        return []
    sampled = 0.0
    for function in functions:
        certain = min(function.invocations, SAMPLED_PER_SECOND)
        sampled += certain + (function.invocations - certain) * SAMPLED_SHARE
    how = f"{SAMPLED_PER_SECOND:.0f} per second, {SAMPLED_SHARE:.0%} of the others"
    return [Line(what="X-Ray: traces", how=how, count=sampled * SECONDS, price=PRICES.xray_trace, unit="traces")]


def _alarms(count: float) -> Line:
    return Line(what="CloudWatch: alarms", count=count, price=PRICES.cloudwatch_alarm, unit="alarms", per=1)
