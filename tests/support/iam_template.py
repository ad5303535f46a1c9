"""Reads a synthesized template as IAM would: may this role send this request?

Only what the stack uses: a condition or function that is not known here fails the test instead of being guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.synthesized import read

ACCOUNT, REGION = "111122223333", "eu-west-1"
_PSEUDO = {"AWS::AccountId": ACCOUNT, "AWS::Region": REGION, "AWS::Partition": "aws", "AWS::StackName": "s3queue"}
_PSEUDO["AWS::URLSuffix"] = "amazonaws.com"
_REF_IS_ARN = ("AWS::SNS::Topic", "AWS::IAM::ManagedPolicy")

Context = Mapping[str, str]


@dataclass(frozen=True)
class Template:
    """A CloudFormation template, with names given to what CloudFormation would name."""

    resources: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, file: Path) -> Template:
        """A stack that was synthesized, with those that it nests."""
        return cls(read(file).resources)

    def of_type(self, kind: str) -> dict[str, Any]:
        return {id: self.resolve(r["Properties"]) for id, r in self.resources.items() if r["Type"] == kind}

    def resolve(self, value: Any) -> Any:
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [self.resolve(item) for item in value]
        if not isinstance(value, Mapping):
            return value
        if len(value) != 1 or not (function := next(iter(value))).startswith(("Fn::", "Ref")):
            return {key: self.resolve(item) for key, item in value.items()}
        argument = value[function]
        if function == "Ref":
            return _PSEUDO.get(argument) or self._ref(argument)
        if function == "Fn::GetAtt" and argument[1] == "Arn":
            return self._arn(argument[0])
        if function == "Fn::Join":
            return argument[0].join(map(str, self.resolve(argument[1])))
        if function == "Fn::Sub" and isinstance(argument, str):
            return re.sub(r"\$\{([^}]+)\}", lambda match: _PSEUDO[match[1]], argument)
        raise NotImplementedError(f"{function} of {argument}")

    def _ref(self, id: str) -> str:
        properties = self.resources[id].get("Properties", {})
        if self.resources[id]["Type"] in _REF_IS_ARN:
            return self._arn(id)
        return str(self.resolve(properties.get("FunctionName") or properties.get("LogGroupName") or id.lower()))

    def _arn(self, id: str) -> str:
        where, type_ = f"{REGION}:{ACCOUNT}", self.resources[id]["Type"]
        name = id.lower() if type_ in _REF_IS_ARN else self._ref(id)
        forms = {
            "AWS::S3::Bucket": f"arn:aws:s3:::{name}",
            "AWS::Lambda::Function": f"arn:aws:lambda:{where}:function:{name}",
            "AWS::Logs::LogGroup": f"arn:aws:logs:{where}:log-group:{name}:*",
            "AWS::IAM::Role": f"arn:aws:iam::{ACCOUNT}:role/{name}",
            "AWS::Events::Rule": f"arn:aws:events:{where}:rule/{name}",
        }
        return forms.get(type_, f"arn:aws:other:{where}:{name}")

    @property
    def queue_bucket(self) -> str:
        """The ARN of the bucket that holds the queues, as the sweeper is told its name."""
        functions = self.of_type("AWS::Lambda::Function").values()
        sweepers = [function for function in functions if "sweeper" in str(function.get("Handler"))]
        (name,) = {sweeper["Environment"]["Variables"]["S3QUEUE_BUCKET"] for sweeper in sweepers}
        return f"arn:aws:s3:::{name}"

    def functions(self) -> dict[str, dict[str, Any]]:
        """By name: those that are ours."""
        found = self.of_type("AWS::Lambda::Function").values()
        return {function["FunctionName"]: function for function in found if "FunctionName" in function}

    @property
    def bucket_key(self) -> str:
        """The ARN of the KMS key that encrypts the queues' bucket; empty if S3's own does."""
        name = self.queue_bucket.rpartition(":")[2]
        (bucket,) = (b for id, b in self.of_type("AWS::S3::Bucket").items() if id.lower() == name)
        (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        return str(rule["ServerSideEncryptionByDefault"].get("KMSMasterKeyID", ""))

    def function(self, name: str) -> dict[str, Any]:
        functions = self.of_type("AWS::Lambda::Function").items()
        (found,) = (f for id, f in functions if name in (f.get("FunctionName"), id.lower()))
        return dict(found)

    def role_of(self, function: str) -> Role:
        """The role that a function runs under, by the function's name."""
        return self.role(self.function(function)["Role"].rpartition("/")[2])

    def role(self, id: str) -> Role:
        """A role, by its logical name."""
        return Role(self, list(self._statements_of(id.lower())), f"arn:aws:iam::{ACCOUNT}:role/{id.lower()}")

    def bucket_statements(self) -> list[Mapping[str, Any]]:
        policies = self.of_type("AWS::S3::BucketPolicy").values()
        return [statement for policy in policies for statement in policy["PolicyDocument"]["Statement"]]

    def _statements_of(self, role: str) -> Iterator[Mapping[str, Any]]:
        for kind in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"):
            for policy in self.of_type(kind).values():
                if role in policy.get("Roles", ()):
                    yield from policy["PolicyDocument"]["Statement"]
        (properties,) = (p for id, p in self.of_type("AWS::IAM::Role").items() if id.lower() == role)
        for policy in properties.get("Policies", ()):
            yield from policy["PolicyDocument"]["Statement"]
        # What an AWS-managed policy allows is not in the template, so a role that has one cannot be judged.
        assert not properties.get("ManagedPolicyArns"), f"{role} has {properties['ManagedPolicyArns']}"


@dataclass(frozen=True)
class Role:
    """Someone who sends requests: identity statements, judged together with the bucket policies."""

    template: Template
    statements: Sequence[Mapping[str, Any]]
    arn: str = f"arn:aws:iam::{ACCOUNT}:role/someone"

    def may(self, action: str, resource: str, context: Context | None = None) -> bool:
        """An explicit Deny anywhere wins; then an Allow of the identity, or of the bucket to this very principal."""
        request = {"aws:SecureTransport": "true", **(context or {})}
        identity = [s for s in self.statements if _applies(s, action, resource, request)]
        bucket = [
            s
            for s in self.template.bucket_statements()
            if _names(s["Principal"], self.arn) and _applies(s, action, resource, request)
        ]
        effects = [statement["Effect"] for statement in (*identity, *bucket)]
        return "Deny" not in effects and "Allow" in effects

    def may_list(self, bucket_arn: str, prefix: str | None) -> bool:
        return self.may("s3:ListBucket", bucket_arn, {} if prefix is None else {"s3:prefix": prefix})


def _names(principal: Any, arn: str) -> bool:
    names = listed(principal["AWS"]) if isinstance(principal, Mapping) else [principal]
    return any(name in ("*", arn) for name in names)


def _applies(statement: Mapping[str, Any], action: str, resource: str, context: Context) -> bool:
    assert not {"NotAction", "NotResource", "NotPrincipal"} & statement.keys(), statement
    return (
        any(_like(pattern.lower(), action.lower()) for pattern in listed(statement["Action"]))
        and any(_like(pattern, resource) for pattern in listed(statement["Resource"]))
        and all(
            _holds(operator, key, listed(wanted), context)
            for operator, keys in statement.get("Condition", {}).items()
            for key, wanted in keys.items()
        )
    )


def _holds(operator: str, key: str, wanted: Sequence[Any], context: Context) -> bool:
    present = context.get(key)
    if operator == "Null":
        return str(present is None).lower() in wanted
    if operator == "StringNotEquals":
        # As in IAM: a key that the request does not have is no such value.
        return present not in wanted
    # As in IAM, any other condition on a key that the request does not have is not met.
    if present is None:
        return False
    if operator == "StringLike":
        return any(_like(pattern, present) for pattern in wanted)
    if operator in ("StringEquals", "Bool"):
        return present in wanted
    raise NotImplementedError(operator)


def _like(pattern: str, value: str) -> bool:
    # Not fnmatch: in IAM `[` is a letter like any other.
    parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)
    return re.fullmatch("".join(parts), value, re.DOTALL) is not None


def listed(value: Any) -> list[Any]:
    """IAM writes one of something without brackets."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
