"""What `cdk deploy -c name=value` can change."""

from __future__ import annotations

from dataclasses import dataclass
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

    @classmethod
    def from_context(cls, node: Node) -> Options:
        """What the command line and `cdk.json` say.

        Raises:
            ValueError: a value that is none of the choices, named.
        """
        target: Target = node.try_get_context("target") or "aws"
        if target not in get_args(Target):
            raise ValueError(f"-c target={target}: it is one of {', '.join(get_args(Target))}")
        flags = ("keep_data", "reserved_concurrency", "enforce_conditional_writes")
        return cls(target=target, **{name: _flag(name, node.try_get_context(name)) for name in flags})


def _flag(name: str, value: object) -> bool:
    # The command line gives text, cdk.json gives JSON; every flag is on unless someone says otherwise.
    if value in (None, True, "true"):
        return True
    if value in (False, "false"):
        return False
    raise ValueError(f"-c {name}={value}: it is true or false")
