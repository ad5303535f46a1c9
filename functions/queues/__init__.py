"""The application's queues: every module of this package defines one. `s3queue.worker.application` finds them.

Importing a module is cheap and sends no request: `infra` imports all of them to deploy them, a worker only its own.
"""

from __future__ import annotations

from s3queue.worker.application import Application
from s3queue.worker.secrets import Reference, secret

__all__ = ["Reference", "environment", "load", "load_one", "secret", "secrets"]

_application = Application(__name__)
environment = _application.environment
load = _application.load
load_one = _application.load_one
secrets = _application.secrets
