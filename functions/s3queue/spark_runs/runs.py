"""SparkRuns: the Spark runs of a deployment, as its functions use them: launch a run, and check the active ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from s3queue.deployment import Deployment
from s3queue.queue import Queue

if TYPE_CHECKING:
    from .launcher import Launcher
    from .service import JobService
    from .watch import RunWatch

_log = logging.getLogger(__name__)


class SparkRuns:
    """Runs on EMR Serverless. The client is made when it is first needed: most workers never see a heavy message."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    @classmethod
    def of(cls, deployment: Deployment) -> SparkRuns | None:
        """None if the deployment has no Spark application; heavy messages then wait, unclaimed, until it has one."""
        return cls(deployment) if deployment.spark_application else None

    def launch(self, queue: Queue, paths: Sequence[str], time_left: Callable[[], float]) -> None:
        """See `Launcher.launch`.

        Raises:
            QueueError: no run could be started. Nothing is claimed, no attempt is used; the sweeper notifies again.
        """
        launched = self._launcher.launch(queue, paths, time_left)
        _log.info("Spark launch %s: %s, heavy messages: %d", launched, queue.name, len(paths))

    def job_changed(self, queues: Mapping[str, Queue], detail: Mapping[str, Any]) -> None:
        """An EMR Serverless job run changed its state: if it ended, fail the messages that it still holds."""
        self._watch.job_changed(queues, detail)

    def check(self, queue: Queue) -> int:
        """For the sweeper: make sure that no run of a queue is forgotten; returns how many runs there are."""
        return self._watch.check(queue)

    @cached_property
    def _launcher(self) -> Launcher:
        from .launcher import Launcher

        return Launcher(self._service, self._deployment.bucket)

    @cached_property
    def _watch(self) -> RunWatch:
        from .watch import RunWatch

        return RunWatch(self._service, self._deployment.bucket)

    @cached_property
    def _service(self) -> JobService:
        from .emr_serverless import EmrServerless, client

        return EmrServerless(client(), self._deployment)
