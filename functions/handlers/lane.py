"""Lane: the port through which a worker hands heavy messages to Spark, and hears how Spark's runs end."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from s3queue.queue import Queue
from s3queue.settings import Deployment

if TYPE_CHECKING:
    from s3queue.jobs import Jobs
    from s3queue.launch import Launcher
    from s3queue.run_watch import RunWatch

_log = logging.getLogger(__name__)


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

    def look_after(self, queue: Queue) -> int:
        """See to it that no run of a queue is forgotten, for the sweeper; how many runs there are."""
        ...


class SparkLane:
    """Runs on EMR Serverless. Its client is made when it is first needed: most workers never see a heavy message."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    def launch(self, queue: Queue, paths: Sequence[str]) -> None:
        outcome = self._launcher.launch(queue, paths)
        _log.info("%d heavy messages of %s: %s", len(paths), queue.name, outcome)

    def job_changed(self, queues: Mapping[str, Queue], detail: Mapping[str, Any]) -> None:
        self._watch.job_changed(queues, detail)

    def look_after(self, queue: Queue) -> int:
        return self._watch.look_after(queue)

    @cached_property
    def _launcher(self) -> Launcher:
        from s3queue.launch import Launcher

        return Launcher(self._jobs, self._deployment.bucket)

    @cached_property
    def _watch(self) -> RunWatch:
        from s3queue.run_watch import RunWatch

        return RunWatch(self._jobs, self._deployment.bucket)

    @cached_property
    def _jobs(self) -> Jobs:
        from s3queue.emr_serverless import EmrServerless, client

        return EmrServerless(client(), self._deployment)


def open_lane(deployment: Deployment) -> Lane | None:
    """The deployment's lane. None: it has none, and heavy messages wait, unclaimed, until it does."""
    return SparkLane(deployment) if deployment.spark_application else None
