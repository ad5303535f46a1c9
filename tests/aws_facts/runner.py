"""Holds a server against the facts: has the conversations of s3.toml with it, and tells where its answers differ."""

from __future__ import annotations

import time
import tomllib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

FACTS = Path(__file__).parent / "s3.toml"
#: Everything that is asked lies below this prefix.
FOLDER = "aws-facts/"


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that S3 does."""

    name: str
    source: str
    #: When the source was read.
    read: date
    steps: tuple[Mapping[str, Any], ...]
    #: Server → how it differs.
    differs: Mapping[str, str] = field(default_factory=dict)
    #: All that whoever has the conversation may do; empty: everything. Only AWS knows IAM.
    allowed: tuple[str, ...] = ()


def facts() -> list[Fact]:
    found = tomllib.loads(FACTS.read_text("utf-8"))["fact"]
    return [Fact(**one | {"steps": tuple(one["steps"]), "allowed": tuple(one.get("allowed", ()))}) for one in found]


def differences(fact: Fact, client: Any, bucket: str, wait: Callable[[float], None] = time.sleep) -> list[str]:
    """How the server's answers differ from S3's; in a bucket that may hold anything under other names."""
    folder = f"{FOLDER}{uuid.uuid4().hex}/"
    answers: list[Mapping[str, Any]] = []
    found: list[str] = []
    for number, step in enumerate(fact.steps, 1):
        if "wait" in step:
            wait(step["wait"])
            answers.append({})
            continue
        answers.append(_call(client, bucket, folder, step["call"], _filled(step["with"], answers)))
        for name, wanted in step.get("answers", {"status": 200}).items():
            given = _field(answers[-1], name, folder)
            if not _is_as(given, _filled(wanted, answers)):
                found.append(f"{number}. {step['call']}: {name} is {given!r}, S3's {wanted!r}")
    return found


def _call(client: Any, bucket: str, folder: str, name: str, options: dict[str, Any]) -> Mapping[str, Any]:
    """One call, below a folder of its own, and its answer, with `status`, and `code` if it is an error."""
    for key in ("Key", "Prefix", "StartAfter"):
        if key in options:
            # A key that is about the limit has that length with its folder.
            options[key] = folder + (options[key][len(folder) :] if len(options[key]) > 1000 else options[key])
    if name == "delete_objects":
        named = [one | {"Key": folder + one["Key"]} for one in options["Delete"]["Objects"]]
        options["Delete"] = {**options["Delete"], "Objects": named}
    if name == "list_objects_v2":
        options.setdefault("Prefix", folder)
    if "CopySource" in options:
        options["CopySource"] = {"Bucket": bucket, "Key": folder + options["CopySource"]}
    try:
        answer = getattr(client, name)(Bucket=bucket, **options)
    except ClientError as error:
        answer = error.response
    status = answer["ResponseMetadata"]["HTTPStatusCode"]
    body = answer["Body"].read().decode() if "Body" in answer else None
    # HTTP's header names have no case; botocore tells metadata as the server wrote it.
    described = {name.lower(): value for name, value in answer.get("Metadata", {}).items()}
    return {
        **answer,
        "Metadata": described,
        "status": status,
        "code": answer.get("Error", {}).get("Code"),
        "Body": body,
    }


def _field(answer: Mapping[str, Any], name: str, folder: str) -> Any:
    """`ETag`, `LastModified.microsecond`, or `Contents.Key` of every entry, without the folder."""
    head, _, rest = name.partition(".")
    value = answer.get(head, [] if head in ("Deleted", "Errors") else None)
    if rest and isinstance(value, list):
        return [str(entry[rest]).removeprefix(folder) for entry in value]
    return getattr(value, rest) if rest and value is not None else value


def _is_as(given: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict) and set(wanted) == {"before"}:
        return given is not None and bool(given < wanted["before"])
    # Every success is one: only 204 is told apart from 200 nowhere.
    return bool(given == wanted or (wanted in (200, 204) and given in (200, 204)))


def _filled(value: Any, answers: list[Mapping[str, Any]]) -> Any:
    """With what former steps answered in the place of `$1.ETag`, and repetitions written out."""
    if isinstance(value, str) and value.startswith("$"):
        number, _, name = value[1:].partition(".")
        return answers[int(number) - 1].get(name)
    if isinstance(value, dict) and set(value) == {"repeat", "times"}:
        return value["repeat"] * value["times"]
    if isinstance(value, dict) and set(value) == {"each", "of"}:
        return [value["of"]] * value["each"]
    if isinstance(value, dict):
        return {name: _filled(one, answers) for name, one in value.items()}
    return [_filled(one, answers) for one in value] if isinstance(value, list) else value
