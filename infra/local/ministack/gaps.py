"""What MiniStack's CloudFormation accepts and forgets, done through the services' own APIs after each deployment.

Read from the templates, nested ones included, so that nothing has to be listed here: the reserved concurrency and the
recursion setting of functions, the lifecycle rules of buckets (stored and shown; nothing expires here), and their
encryption (shown as well; nothing is encrypted, and no request to KMS is checked).

What stays different on this machine, except in `make up` (throttled_events.py): a throttled event is dropped at once,
where Lambda retries it for six hours, so bursts lean on the sweeper.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

Template = Mapping[str, Any]


def fill(stacks: Iterable[str], client: Any) -> None:
    """Of these stacks, by name; `client("lambda")` and so on are boto3 clients."""
    for stack in stacks:
        _fill(stack, client)


def _fill(stack: str, client: Any) -> None:
    cloudformation = client("cloudformation")
    found = cloudformation.describe_stack_resources(StackName=stack)["StackResources"]
    names = {resource["LogicalResourceId"]: resource.get("PhysicalResourceId") for resource in found}
    template = cloudformation.get_template(StackName=stack)["TemplateBody"]
    for logical, resource in (json.loads(template) if isinstance(template, str) else template)["Resources"].items():
        properties, name = resource.get("Properties", {}), names.get(logical)
        if name and resource["Type"] == "AWS::CloudFormation::Stack":
            _fill(name, client)
        elif name and resource["Type"] == "AWS::Lambda::Function":
            _function(client("lambda"), name, properties)
        elif name and resource["Type"] == "AWS::S3::Bucket":
            _bucket(client("s3"), name, properties)


def _function(functions: Any, name: str, properties: Template) -> None:
    reserved = properties.get("ReservedConcurrentExecutions")
    if reserved is not None:
        functions.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=int(reserved))
    if properties.get("RecursiveLoop"):
        functions.put_function_recursion_config(FunctionName=name, RecursiveLoop=properties["RecursiveLoop"])


def _bucket(s3: Any, name: str, properties: Template) -> None:
    rules = [_rule(rule) for rule in properties.get("LifecycleConfiguration", {}).get("Rules", [])]
    if rules:
        s3.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration={"Rules": rules})
    if encryption := properties.get("BucketEncryption", {}).get("ServerSideEncryptionConfiguration"):
        described = [_encryption(rule) for rule in encryption]
        s3.put_bucket_encryption(Bucket=name, ServerSideEncryptionConfiguration={"Rules": described})


def _encryption(rule: Template) -> dict[str, Any]:
    described: dict[str, Any] = {"ApplyServerSideEncryptionByDefault": dict(rule["ServerSideEncryptionByDefault"])}
    return described | ({"BucketKeyEnabled": True} if rule.get("BucketKeyEnabled") else {})


def _rule(rule: Template) -> dict[str, Any]:
    described: dict[str, Any] = {"Status": rule["Status"], "Filter": {"Prefix": rule.get("Prefix", "")}}
    if "Id" in rule:
        described["ID"] = rule["Id"]
    if "ExpirationInDays" in rule:
        described["Expiration"] = {"Days": rule["ExpirationInDays"]}
    if "AbortIncompleteMultipartUpload" in rule:
        described["AbortIncompleteMultipartUpload"] = dict(rule["AbortIncompleteMultipartUpload"])
    return described
