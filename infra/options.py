"""What `cdk deploy -c name=value` can change."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from constructs import Node

from s3queue.deployment import Metrics

Target = Literal["aws", "local"]
#: Not an alias: a policy has to name the key itself.
_KEY = re.compile(r"arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[A-Za-z0-9-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One deployment's choices; the defaults are what production wants."""

    #: `-c target=local` bundles for this machine's Python and drops what an emulator over plain HTTP cannot honour.
    target: Target = "aws"
    #: `-c keep_data=false`: `cdk destroy` deletes the buckets with everything in them.
    keep_data: bool = True
    #: `-c reserved_concurrency=false`: for a new account, which has 10 concurrent executions in all.
    reserved_concurrency: bool = True
    #: `-c enforce_conditional_writes=false`: for clients that cannot send If-Match, and who know what they lose.
    enforce_conditional_writes: bool = True
    #: `-c create_only_producers=true`: the producer policies refuse a PUT that could overwrite a message that waits.
    create_only_producers: bool = False
    #: `-c direct_store=false`: the functions speak to S3 through boto3, say for S3 Transfer Acceleration.
    direct_store: bool = True
    #: `-c schedule_pipeline=true`: archive every night and statistics every hour, each a run that is paid for.
    schedule_pipeline: bool = False
    #: `-c smoke_queue=true`: with the queue of `make aws-smoke`, whose messages can kill its worker.
    smoke_queue: bool = False
    #: `-c tracing=true`: X-Ray follows a message a second and one in twenty beyond that; $660 a month at 1,000/s.
    tracing: bool = False
    #: `-c metrics=all` or `off`: each queue's own metrics, $0.30 a month each. By default those that its alarms watch.
    metrics: Metrics = "alarms"
    #: `-c kms_key=arn:aws:kms:…:key/…`: buckets, logs and the alarms' topic are encrypted with this key of yours.
    kms_key: str = ""
    #: `-c athena=true`: the archive is a table of the Glue Data Catalog, which Athena reads.
    athena: bool = False

    @classmethod
    def from_context(cls, node: Node) -> Options:
        """What the command line and `cdk.json` say.

        Raises:
            ValueError: a value that is none of the choices, named.
        """
        target: Target = _choice(node, "target", get_args(Target), "aws")
        metrics: Metrics = _choice(node, "metrics", get_args(Metrics), "alarms")
        flags = {field.name: field.default for field in fields(cls) if isinstance(field.default, bool)}
        chosen = {name: _flag(name, node.try_get_context(name), default) for name, default in flags.items()}
        if target == "local" and chosen["schedule_pipeline"]:
            raise ValueError(
                "-c schedule_pipeline=true: an emulator has no such schedules; run spark/archive.py yourself"
            )
        if target == "local" and chosen["athena"]:
            raise ValueError("-c athena=true: an emulator has no Athena; read the archive as docs/archive.md says")
        kms_key = node.try_get_context("kms_key") or ""
        if kms_key and not _KEY.fullmatch(str(kms_key)):
            raise ValueError(f"-c kms_key={kms_key}: it is the ARN of a key, arn:aws:kms:REGION:ACCOUNT:key/ID")
        return cls(target=target, metrics=metrics, kms_key=kms_key, **chosen)


def _choice(node: Node, name: str, choices: tuple[str, ...], default: str) -> Any:
    value = node.try_get_context(name) or default
    if value not in choices:
        raise ValueError(f"-c {name}={value}: it is one of {', '.join(choices)}")
    return value


def _flag(name: str, value: object, default: bool) -> bool:
    # The command line gives text, cdk.json gives JSON.
    if value is None:
        return default
    if value in (True, "true"):
        return True
    if value in (False, "false"):
        return False
    raise ValueError(f"-c {name}={value}: it is true or false")
