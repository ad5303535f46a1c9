"""SparkRuns: the Spark runs of a deployment, as its functions use them: launch one, and look after those there are."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from s3queue.queue import Queue
from s3queue.settings import Deployment

if TYPE_CHECKING:
    from .launcher import Launcher
    from .service import JobService
    from .watch import RunWatch

_log = logging.getLogger(__name__)


class SparkRuns:
    """Runs on EMR Serverless. Its client is made when it is first needed: most workers never see a heavy message."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    @classmethod
    def of(cls, deployment: Deployment) -> SparkRuns | None:
        """None: the deployment has no Spark application, and heavy messages wait, unclaimed, until it does."""
        return cls(deployment) if deployment.spark_application else None

    def launch(self, queue: Queue, paths: Sequence[str]) -> None:
        """See to it that these messages run: start a run, or leave them to one that is there.

        Raises:
            QueueError: neither was possible now. Nothing is claimed, no attempt is used; the sweeper notifies again.
        """
        launched = self._launcher.launch(queue, paths)
        _log.info("launch of %d heavy messages of %s: %s", len(paths), queue.name, launched)

    def job_changed(self, queues: Mapping[str, Queue], detail: Mapping[str, Any]) -> None:
        """An EMR Serverless job run changed its state: if it failed, fail what it held."""
        self._watch.job_changed(queues, detail)

    def check(self, queue: Queue) -> int:
        """See to it that no run of a queue is forgotten, for the sweeper; how many runs there are."""
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
