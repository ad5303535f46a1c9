"""What AWS takes of a stack, held against what was synthesized: too much of anything fails here, not half-way through a
deployment.

CloudFormation chooses names that no template knows. A name that it makes of a stack's and a resource's counts with its
length; another one with that of the longest that the service allows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jsii
from aws_cdk import (
    IPolicyValidationContext,
    IPolicyValidationPlugin,
    PolicyValidationPluginReport,
    PolicyViolatingResource,
    PolicyViolation,
)

from .synthesized import SynthesizedStack, read

ELSEWHERE = "Move some queues to a second installation, under another name (-c stack=…)"
SHORTER = f"Give queues shorter names. {ELSEWHERE}"


class Quota(NamedTuple):
    name: str
    most: int
    what_to_do: str


TEMPLATE_BYTES = Quota("bytes of a template", 1_000_000, ELSEWHERE)
RESOURCES = Quota("resources in a stack", 500, ELSEWHERE)
OUTPUTS = Quota("outputs of a stack", 200, ELSEWHERE)
PARAMETERS = Quota("parameters of a stack", 200, ELSEWHERE)
MANAGED_POLICY = Quota("characters of a managed policy", 6_144, SHORTER)
INLINE_POLICIES = Quota("characters of a role's inline policies", 10_240, SHORTER)
POLICIES_OF_ROLE = Quota("managed policies of a role", 10, SHORTER)
BUCKET_POLICY = Quota(
    "characters of a bucket policy", 20_480, f"{SHORTER}, or deploy with -c enforce_conditional_writes=false"
)
ENVIRONMENT = Quota(
    "bytes of a function's variables", 4_096, f"Let handlers read long values from elsewhere. {SHORTER}"
)
NOTIFICATIONS = Quota("notification rules of a bucket", 100, ELSEWHERE)
LIFECYCLE = Quota("lifecycle rules of a bucket", 1_000, ELSEWHERE)
WIDGETS = Quota("widgets of a dashboard", 500, f"{ELSEWHERE}, or deploy with -c metrics=alarms")


class Figure(NamedTuple):
    """How much of a quota one thing takes."""

    quota: Quota
    where: str
    figure: int


def figures(stack: SynthesizedStack, name: str) -> Iterator[Figure]:
    """All that is limited, as this deployment has it; `name` is the stack's."""
    for file, template in stack.templates.items():
        yield Figure(TEMPLATE_BYTES, file, stack.sizes[file])
        for quota, section in ((RESOURCES, "Resources"), (OUTPUTS, "Outputs"), (PARAMETERS, "Parameters")):
            yield Figure(quota, file, len(template.get(section, {})))
    yield from _Sizes(stack.resources, name).figures()


class _Sizes:
    def __init__(self, resources: Mapping[str, Mapping[str, Any]], stack: str) -> None:
        self._resources, self._stack = resources, stack

    def figures(self) -> Iterator[Figure]:
        inline: dict[str, int] = {}
        attached: dict[str, int] = {}
        for id, resource in self._resources.items():
            properties = resource.get("Properties", {})
            match resource["Type"]:
                case "AWS::IAM::Policy":
                    for role in properties["Roles"]:
                        inline[role["Ref"]] = inline.get(role["Ref"], 0) + self._characters(properties)
                case "AWS::IAM::ManagedPolicy":
                    yield Figure(MANAGED_POLICY, id, self._characters(properties))
                    for role in properties.get("Roles", ()):
                        attached[role["Ref"]] = attached.get(role["Ref"], 0) + 1
                case "AWS::S3::BucketPolicy":
                    yield Figure(BUCKET_POLICY, id, self._characters(properties))
                case "AWS::Lambda::Function":
                    variables = self._text(properties.get("Environment", {}).get("Variables", {}))
                    size = sum(len(f"{name}{value}".encode()) for name, value in variables.items())
                    yield Figure(ENVIRONMENT, id, size)
                case "Custom::S3BucketNotifications":
                    rules = sum(map(len, properties["NotificationConfiguration"].values()))
                    yield Figure(NOTIFICATIONS, id, rules)
                case "AWS::CloudWatch::Dashboard":
                    yield Figure(WIDGETS, id, self._widgets(properties["DashboardBody"]))
                case "AWS::S3::Bucket":
                    yield Figure(LIFECYCLE, id, len(properties.get("LifecycleConfiguration", {}).get("Rules", ())))
        yield from (Figure(INLINE_POLICIES, role, size) for role, size in inline.items())
        yield from (Figure(POLICIES_OF_ROLE, role, count) for role, count in attached.items())

    def _characters(self, properties: Mapping[str, Any]) -> int:
        # IAM counts no white space, and S3 gets none from CloudFormation.
        return len(json.dumps(self._text(properties["PolicyDocument"]), separators=(",", ":")))

    def _widgets(self, body: Any) -> int:
        return len(json.loads(self._text(body))["widgets"])

    def _text(self, value: Any) -> Any:
        """As long as CloudFormation will make it."""
        if isinstance(value, list):
            return [self._text(item) for item in value]
        if not isinstance(value, Mapping):
            return value
        if len(value) != 1 or not (function := next(iter(value))).startswith(("Fn::", "Ref")):
            return {key: self._text(item) for key, item in value.items()}
        argument = value[function]
        if function == "Ref":
            return _PSEUDO.get(argument) or self._name(argument)
        if function == "Fn::Join":
            return str(argument[0]).join(map(str, self._text(argument[1])))
        if function == "Fn::GetAtt":
            return _ARN.get(self._type(argument[0]), _LONGEST_ARN) + self._name(argument[0])
        # A reference to another stack, and the like.
        return "x" * LONGEST_NAME

    def _type(self, id: str) -> str:
        return str(self._resources[id]["Type"]) if id in self._resources else ""

    def _name(self, id: str) -> str:
        """`{stack}-{logical id}-{12 or 13 letters}`, cut to what the service takes; or the name that is given."""
        given = self._resources.get(id, {}).get("Properties", {})
        if name := given.get("FunctionName") or given.get("LogGroupName"):
            return str(self._text(name))
        return f"{self._stack}-{id}-{'x' * 13}"[:LONGEST_NAME]


#: Of a bucket and of a role; of a function 64.
LONGEST_NAME = 64
_PSEUDO = {"AWS::AccountId": "1" * 12, "AWS::Region": "ap-southeast-1", "AWS::Partition": "aws"}
_WHERE = "ap-southeast-1:111111111111"
_ARN = {
    "AWS::S3::Bucket": "arn:aws:s3:::",
    "AWS::Lambda::Function": f"arn:aws:lambda:{_WHERE}:function:",
    "AWS::IAM::Role": "arn:aws:iam::111111111111:role/",
}
_LONGEST_ARN = f"arn:aws:cloudwatch:{_WHERE}:something-long/"


@jsii.implements(IPolicyValidationPlugin)
class Quotas:
    """Fails the synth of one stack, with each quota that it exceeds, by how much, and what to do."""

    def __init__(self, template: str) -> None:
        self._template = template

    @property
    @jsii.member(jsii_name="name")
    def name(self) -> str:
        return "s3queue-quotas"

    @property
    @jsii.member(jsii_name="version")
    def version(self) -> None:
        """The stack's own."""

    @property
    @jsii.member(jsii_name="ruleIds")
    def rule_ids(self) -> None:
        """Those that are violated name themselves."""

    @jsii.member(jsii_name="validate")
    def validate(self, context: IPolicyValidationContext) -> PolicyValidationPluginReport:
        violations = [
            PolicyViolation(
                rule_name=figure.quota.name.replace(" ", "-"),
                description=f"{figure.figure:,} {figure.quota.name}; AWS takes {figure.quota.most:,}",
                fix=figure.quota.what_to_do,
                violating_resources=[
                    PolicyViolatingResource(resource_logical_id=figure.where, template_path=path, locations=[])
                ],
            )
            for path in context.template_paths
            if Path(path).name == self._template
            for figure in figures(read(Path(path)), Path(path).name.partition(".")[0])
            if figure.figure > figure.quota.most
        ]
        return PolicyValidationPluginReport(success=not violations, violations=violations)
