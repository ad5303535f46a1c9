"""What `cdk deploy -c name=value` can change."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from constructs import Node

Target = Literal["aws", "local"]


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

    @classmethod
    def from_context(cls, node: Node) -> Options:
        """What the command line and `cdk.json` say.

        Raises:
            ValueError: a value that is none of the choices, named.
        """
        target: Target = node.try_get_context("target") or "aws"
        if target not in get_args(Target):
            raise ValueError(f"-c target={target}: it is one of {', '.join(get_args(Target))}")
        flags = {field.name: field.default for field in fields(cls) if isinstance(field.default, bool)}
        chosen = {name: _flag(name, node.try_get_context(name), default) for name, default in flags.items()}
        if target == "local" and chosen["schedule_pipeline"]:
            raise ValueError(
                "-c schedule_pipeline=true: an emulator has no such schedules; run spark/archive.py yourself"
            )
        return cls(target=target, **chosen)


def _flag(name: str, value: object, default: bool) -> bool:
    # The command line gives text, cdk.json gives JSON.
    if value is None:
        return default
    if value in (True, "true"):
        return True
    if value in (False, "false"):
        return False
    raise ValueError(f"-c {name}={value}: it is true or false")
