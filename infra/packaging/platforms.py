"""Platform: which Python on which processor a zip is built for."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass

from aws_cdk import aws_lambda as lambda_

from ..options import Target


@dataclass(frozen=True, slots=True)
class Platform:
    """What the zip is built for, and what runs it: they must agree, because wheels hold machine code."""

    python: tuple[int, int]
    architecture: str

    @classmethod
    def of(cls, target: Target) -> Platform:
        if target == "aws":
            return cls((3, 13), "arm64")
        machine = platform.machine().lower()
        return cls(sys.version_info[:2], "arm64" if machine in ("arm64", "aarch64") else "x86_64")

    @property
    def runtime(self) -> lambda_.Runtime:
        return lambda_.Runtime("python{}.{}".format(*self.python), lambda_.RuntimeFamily.PYTHON)

    @property
    def lambda_architecture(self) -> lambda_.Architecture:
        return lambda_.Architecture.ARM_64 if self.architecture == "arm64" else lambda_.Architecture.X86_64
