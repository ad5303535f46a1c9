"""Prices: the only table of prices in this project.

List prices of US East (N. Virginia) in November 2026: the first tier, without free tiers, savings plans or discounts.
Check the prices of your region.
"""

from __future__ import annotations

from dataclasses import dataclass

MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """In dollars. Requests, invocations, events, traces and GB-seconds per million; the others per unit."""

    s3_write: float = 5.00  # PUT, COPY, LIST
    s3_read: float = 0.40  # GET, HEAD
    s3_delete: float = 0.00
    #: Per GB and month.
    s3_storage: float = 0.023
    sqs_request: float = 0.40
    lambda_invocation: float = 0.20
    #: arm64, which the stack deploys.
    lambda_gb_second: float = 13.3334
    eventbridge_event: float = 1.00
    #: Recorded, not looked at.
    xray_trace: float = 5.00
    #: Requests of KMS; a key per month.
    kms_request: float = 3.00
    kms_key: float = 1.00
    #: Per month, of the first ten thousand; logs per GB.
    cloudwatch_metric: float = 0.30
    cloudwatch_alarm: float = 0.10
    cloudwatch_logs: float = 0.50
    #: EMR Serverless on arm64, per hour.
    emr_vcpu: float = 0.042094
    emr_gb: float = 0.004628


PRICES = Prices()


def requests_cost(*, lists: float = 0, puts: float = 0, gets: float = 0) -> float:
    """What this many requests to S3 cost; deletes are free."""
    return ((lists + puts) * PRICES.s3_write + gets * PRICES.s3_read) / MILLION
