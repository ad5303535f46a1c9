"""Reads a synthesized stack and its nested stacks as one: what a whole deployment consists of, in one namespace."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Template = Mapping[str, Any]
NESTED = "AWS::CloudFormation::Stack"


@dataclass(frozen=True)
class SynthesizedStack:
    """The templates as CloudFormation gets them, and what is in all of them together."""

    #: File name → template; the stack's own is the first.
    templates: Mapping[str, Template]
    #: File name → bytes.
    sizes: Mapping[str, int]
    #: Of every template. A nested stack's parameters and outputs are replaced by what they stand for.
    resources: Mapping[str, Template]
    #: Of the stack itself.
    outputs: Mapping[str, Template]


def read(file: Path) -> SynthesizedStack:
    """A template that `cdk synth` wrote, with those that it nests, one level deep."""
    root = json.loads(file.read_text())
    nested = {id: _file_of(resource, file) for id, resource in root["Resources"].items() if resource["Type"] == NESTED}
    templates = {id: json.loads(path.read_text()) for id, path in nested.items()}
    scope = _Root(root, templates)
    resources = {id: scope.outer(resource) for id, resource in root["Resources"].items() if id not in nested}
    for id, template in templates.items():
        resources |= {_inside(id, name): scope.inner(id, one) for name, one in template["Resources"].items()}
    return SynthesizedStack(
        templates={file.name: root, **{nested[id].name: template for id, template in templates.items()}},
        sizes={path.name: path.stat().st_size for path in (file, *nested.values())},
        resources=resources,
        outputs=scope.outer(root.get("Outputs", {})),
    )


def _file_of(resource: Template, root: Path) -> Path:
    """The template of a nested stack: an asset of the outer one, whose URL ends with its hash."""
    manifest = json.loads(root.with_name(root.name.replace(".template.", ".assets.")).read_text())
    url = json.dumps(resource["Properties"]["TemplateURL"])
    (path,) = [asset["source"]["path"] for hash, asset in manifest["files"].items() if f"/{hash}.json" in url]
    return root.with_name(path)


def _inside(stack: str, name: str) -> str:
    """A logical id that no other stack's resource has: in their own stacks, two queues' functions have the same."""
    return f"{stack}{name}"


@dataclass(frozen=True)
class _Root:
    root: Template
    nested: Mapping[str, Template]

    def outer(self, value: Any) -> Any:
        """What a template of the outer stack says, with outputs of nested stacks replaced."""
        if _calls(value, "Fn::GetAtt") and value["Fn::GetAtt"][0] in self.nested:
            stack, attribute = value["Fn::GetAtt"]
            return self.inner(stack, self.nested[stack]["Outputs"][attribute.removeprefix("Outputs.")]["Value"])
        return _each(value, self.outer)

    def inner(self, stack: str, value: Any) -> Any:
        """What a nested template says, with its parameters replaced and its own resources named as here."""
        own = self.nested[stack]["Resources"]
        if _calls(value, "Ref") and value["Ref"] in self.nested[stack].get("Parameters", {}):
            return self.outer(self.root["Resources"][stack]["Properties"]["Parameters"][value["Ref"]])
        if _calls(value, "Ref") and value["Ref"] in own:
            return {"Ref": _inside(stack, value["Ref"])}
        if _calls(value, "Fn::GetAtt") and value["Fn::GetAtt"][0] in own:
            id, attribute = value["Fn::GetAtt"]
            return {"Fn::GetAtt": [_inside(stack, id), attribute]}
        if isinstance(value, Mapping) and "DependsOn" in value:
            ids = value["DependsOn"] if isinstance(value["DependsOn"], list) else [value["DependsOn"]]
            return {
                **self.inner(stack, {key: item for key, item in value.items() if key != "DependsOn"}),
                "DependsOn": [_inside(stack, id) for id in ids],
            }
        return _each(value, lambda item: self.inner(stack, item))


def _calls(value: Any, function: str) -> bool:
    return isinstance(value, Mapping) and len(value) == 1 and function in value


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: change(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [change(item) for item in value]
    return value
