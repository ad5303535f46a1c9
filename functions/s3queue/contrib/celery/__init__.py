"""Celery over a bucket: importing this module makes `s3queue://bucket` a broker and a result backend.

Core modules never import it. docs/celery.md says what Celery does here, and what S3 cannot do.
"""

from __future__ import annotations

from celery.app.backends import BACKEND_ALIASES
from kombu.transport import TRANSPORT_ALIASES

from .address import SCHEME
from .revoking import Revoked, revoke

__all__ = ["Revoked", "revoke"]

# Neither kombu nor an app that was not installed as a package has another way to make a scheme known. Names, not
# classes: a program that only sends tasks does not load what workers need.
TRANSPORT_ALIASES[SCHEME] = "s3queue.contrib.celery.transport:Transport"
BACKEND_ALIASES[SCHEME] = "s3queue.contrib.celery.backend:Backend"
