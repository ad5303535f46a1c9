"""Lane: the port through which a worker hands heavy messages to Spark, and hears how Spark's runs end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from s3queue.queue import Queue
from s3queue.settings import Deployment


class Lane(Protocol):
    """Runs heavy messages, many in one run. Claims them itself: what it does not take stays as it was."""

    def launch(self, queue: Queue, paths: Sequence[str]) -> None:
        """See to it that these messages run: start a run, or leave them to one that is there.

        Raises:
            QueueError: neither was possible now. Nothing is claimed, no attempt is used; the sweeper rings again.
        """
        ...

    def job_changed(self, queues: Mapping[str, Queue], detail: Mapping[str, Any]) -> None:
        """An EMR Serverless job run changed its state: if it failed, fail what it held."""
        ...


def open_lane(deployment: Deployment) -> Lane | None:
    """The deployment's lane. None: it has none, and heavy messages wait, unclaimed, until it does."""
    # No lane exists yet: spark/ brings the one over EMR Serverless, and `deployment.spark_application` opens it.
    return None
