"""The Django app: it has the worker's command, and no models."""

from __future__ import annotations

from django.apps import AppConfig


class S3QueueConfig(AppConfig):
    """`s3queue.contrib.django` in INSTALLED_APPS."""

    name = "s3queue.contrib.django"
    label = "s3queue"
    verbose_name = "s3queue"
