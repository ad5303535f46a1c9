"""Lets MiniStack update nested stacks. Runs inside MiniStack's own environment, as gateway.py does.

MiniStack 1.5.33 forgets the attributes of what did not change in a nested stack, and then fails on the first reference
to one: a stack that is found again by `make up` could never be deployed a second time.
"""

from __future__ import annotations

from typing import Any

from ministack.services import cloudformation
from ministack.services.cloudformation import provisioners


def remember_attributes() -> None:
    """Give each update the attributes that its resource had."""
    original = provisioners._update_resource

    def update(
        kind: str,
        physical: str,
        old: dict[str, Any],
        new: dict[str, Any],
        stack: str,
        logical: str | None = None,
        attributes: dict[str, Any] | None = None,
    ) -> Any:
        if attributes is None:
            known = (cloudformation._stacks.get(stack) or {}).get("_resources", {})
            attributes = (known.get(logical) or {}).get("Attributes")
        return original(kind, physical, old, new, stack, logical, attributes)

    provisioners._update_resource = update
