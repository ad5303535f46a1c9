"""What watching costs: the figures that the documents give."""

from __future__ import annotations

import pytest

from s3queue import InvalidRequest
from s3queue.costs.bill import bill_of, sqs_bill_of
from s3queue.costs.estimate import estimate
from s3queue.costs.workload import Workload
from s3queue.deployment import METRICS


def costs(**load: object) -> dict[str, float]:
    return {line.what: line.cost for line in bill_of(estimate(Workload(**{"rate": 1000} | load))).lines}


def test_traces_cost_what_the_default_rule_samples():
    # 1 + 999 * 5 % a second, and the sweeper once a minute.
    assert costs(tracing=True)["X-Ray: traces"] == pytest.approx(
        (1 + 999 * 0.05 + 1 / 60) * 30 * 86400 * 5e-6, rel=0.01
    )
    assert costs(tracing=True, rate=1 / 60)["X-Ray: traces"] == pytest.approx(2 / 60 * 30 * 86400 * 5e-6, rel=0.01)
    assert "X-Ray: traces" not in costs()


def test_sqs_pays_for_traces_too_and_not_for_metrics():
    load = Workload(rate=1000, tracing=True, metrics="all")
    theirs = {line.what: line.cost for line in sqs_bill_of(estimate(load), batched=False).lines}
    assert theirs["X-Ray: traces"] == pytest.approx((1 + 99 * 0.05) * 30 * 86400 * 5e-6, rel=0.01)
    assert "CloudWatch: metrics" not in theirs


@pytest.mark.parametrize("metrics", list(METRICS))
def test_every_metric_of_every_queue_is_paid_for(metrics):
    found = costs(metrics=metrics, queues=7)
    assert found.get("CloudWatch: metrics", 0) == pytest.approx(0.30 * 7 * len(METRICS[metrics]))
    assert ("CloudWatch: metrics' log lines" in found) == (metrics == "all")


def test_a_key_of_ones_own_costs_a_hundredth_of_a_request_for_each():
    found = costs(kms=True, handler_seconds=0.0)
    # Three PUT and a GET of each message.
    assert found["KMS: requests"] == pytest.approx(4 * 0.01 * 1000 * 30 * 86400 * 3e-6, rel=0.02)
    assert found["KMS: key"] == 1.00
    assert "KMS: requests" not in costs()


def test_which_metrics_is_one_of_three():
    with pytest.raises(InvalidRequest, match="all, alarms or off"):
        Workload(rate=1, metrics="some")
