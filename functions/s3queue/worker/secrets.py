"""Secrets: what a handler must know and nobody else may read, fetched at run time and kept for five minutes.

A function's configuration can be read by everyone who can see the function, so it holds a reference only: where the
secret lies. A secret that changes is known within five minutes, without a deployment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from s3queue.clock import SystemClock
from s3queue.errors import InvalidRequest

#: Name → reference, as JSON: what infra gives a function.
VARIABLE = "S3QUEUE_SECRETS"
KEPT_SECONDS = 300
NOT_FOUND = ("ParameterNotFound", "ResourceNotFoundException")
#: Secrets that are nowhere, and since when that is known: the others are in Powertools' cache.
_absent: dict[str, float] = {}
_clock = SystemClock()


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a secret lies: `ssm:/name` (a SecureString), `secretsmanager:name`, or `secretsmanager:name#key`."""

    service: Literal["ssm", "secretsmanager"]
    name: str
    key: str = ""

    @classmethod
    def parse(cls, text: str) -> Reference:
        """
        Raises:
            InvalidRequest: it names neither of the two services.
        """
        service, _, rest = text.partition(":")
        name, _, key = rest.partition("#")
        if service == "ssm" and name and not key:
            return cls("ssm", name)
        if service == "secretsmanager" and name:
            return cls("secretsmanager", name, key)
        raise InvalidRequest(f"{text!r} is no secret: write ssm:/name, secretsmanager:name or secretsmanager:name#key")

    @property
    def way_out(self) -> str:
        if self.service == "ssm":
            return f"aws ssm put-parameter --type SecureString --name {self.name} --value …"
        return f"aws secretsmanager create-secret --name {self.name} --secret-string …"


def secret(name: str) -> str:
    """The secret that a module's `SECRETS` names; empty if there is none. An environment variable of its name counts
    first, which is how tests and laptops set it.

    Raises:
        InvalidRequest: the reference, or the key of its JSON, is wrong.
        Exception: it cannot be read: a missing permission, an outage. The attempt fails, and is tried again.
    """
    given = os.environ.get(name)
    if given is not None:
        return given
    references: Mapping[str, str] = json.loads(os.environ.get(VARIABLE) or "{}")
    if name not in references or _clock.monotonic() - _absent.get(name, float("-inf")) < KEPT_SECONDS:
        return ""
    found = _read(Reference.parse(references[name]))
    if found is None:
        _absent[name] = _clock.monotonic()
    return found or ""


def _read(reference: Reference) -> str | None:
    """None: there is no such secret."""
    # Imported here: with boto3 it takes longer than all else that a handler imports.
    from aws_lambda_powertools.utilities import parameters

    try:
        if reference.service == "ssm":
            return parameters.get_parameter(reference.name, decrypt=True, max_age=KEPT_SECONDS)
        found: Any = parameters.get_secret(reference.name, max_age=KEPT_SECONDS)
    except parameters.GetParameterError as error:
        # Powertools keeps the code of AWS's answer in nothing but the error that it replaced.
        answer = getattr(error.__context__, "response", {})
        if answer.get("Error", {}).get("Code") in NOT_FOUND:
            return None
        raise
    if not reference.key:
        return str(found)
    document = json.loads(found)
    if not isinstance(document, dict) or reference.key not in document:
        raise InvalidRequest(f"secretsmanager:{reference.name} has no key {reference.key!r}; add it to its JSON")
    return str(document[reference.key])
