"""EmrServerless: the JobService of EMR Serverless; the only file that knows its requests and its errors.

The client is injected. Locally its endpoint URL is that of infra/local/emr; the code is the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
)

from s3queue.deployment import Deployment
from s3queue.errors import AccessDenied, QueueError, Unavailable
from s3queue.run_memory import RunMemory
from s3queue.settings import aws_region

from .service import Job, JobRequest, NotStarted, Phase

#: Tags that tell which queue and run a job belongs to: EMR's events name neither.
QUEUE_TAG = "s3queue:queue"
RUN_TAG = "s3queue:run"
_ENDED = frozenset({"SUCCESS", "FAILED", "CANCELLED"})
#: `CANCELLING` still holds its messages.
_RUNNING = frozenset({"RUNNING", "CANCELLING"})
#: Time for the driver to start, and to close its slot after its last message, before the service ends it by force.
WRAP_UP_MINUTES = 5
#: In EMR's image; infra/packaging builds the packages for it.
PYTHON = "/usr/bin/python3.11"


@dataclass(frozen=True, slots=True)
class EmrServerless:
    """JobService of one application."""

    client: Any
    deployment: Deployment

    def start(self, request: JobRequest) -> str:
        described = self.described(request)
        answer = self._ask("StartJobRun", lambda: self.client.start_job_run(**described), refused=NotStarted)
        if answer is None:
            raise NotStarted(
                f"Spark run not started: there is no EMR Serverless application {self.deployment.spark_application}; "
                "deploy the stack again"
            )
        return str(answer["jobRunId"])

    def get(self, job: str) -> Job | None:
        application = self.deployment.spark_application
        answer = self._ask("GetJobRun", lambda: self.client.get_job_run(applicationId=application, jobRunId=job))
        return _job(answer["jobRun"]) if answer else None

    def find(self, run: str, *, since: datetime) -> Job | None:
        token: str | None = ""
        while token is not None:
            more = {"nextToken": token} if token else {}
            asked = {
                "applicationId": self.deployment.spark_application,
                "createdAtAfter": since,
                "maxResults": 50,
            } | more
            answer = self._ask("ListJobRuns", partial(self.client.list_job_runs, **asked))
            for found in (answer or {}).get("jobRuns", ()):
                if found.get("name") == run:
                    return self.get(str(found["id"]))
            token = (answer or {}).get("nextToken")
        return None

    def cancel(self, job: str) -> None:
        application = self.deployment.spark_application
        self._ask("CancelJobRun", lambda: self.client.cancel_job_run(applicationId=application, jobRunId=job))

    def described(self, request: JobRequest) -> dict[str, Any]:
        """The request as EMR expects it. The same run gives the same bytes, because EMR refuses a token with others."""
        minutes = math.ceil(request.timeout.total_seconds() / 60)
        # The driver starts messages until its time is up, and no setting says how long one takes: the last may take as
        # long as all before it. What the service ends by force has used an attempt for nothing.
        most_minutes = 2 * minutes + WRAP_UP_MINUTES
        return start_job_run(
            self.deployment,
            token=request.run,
            name=request.run,
            arguments=[
                *("--bucket", request.bucket),
                *("--queue", request.queue),
                *("--run", request.run),
                *("--seconds", str(minutes * 60)),
            ],
            minutes=most_minutes,
            max_executors=request.max_executors,
            memory=request.memory,
            tags={QUEUE_TAG: request.queue, RUN_TAG: request.run},
        )

    def _ask(self, action: str, send: Any, refused: type[QueueError] = Unavailable) -> Any:
        """The answer; None if there is no such job or application. Raises `refused` if the service does not do it: a
        question that was throttled says nothing about a job.
        """
        try:
            return send()
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            if code == "ResourceNotFoundException":
                return None
            if code in ("AccessDeniedException", "AccessDenied"):
                raise AccessDenied(f"emr-serverless:{action} is not allowed: {error}") from error
            # 429 and 402 are throttling and quotas, whatever their codes.
            if status < 500:
                raise refused(f"{action}: {code}: {error.response.get('Error', {}).get('Message', '')}") from error
            raise Unavailable(f"{action}: {error}") from error
        except (ParamValidationError, NoCredentialsError, NoRegionError) as error:
            raise refused(f"{action}: {error}") from error
        except BotoCoreError as error:
            raise Unavailable(f"{action}: no answer: {error}") from error


def start_job_run(
    deployment: Deployment,
    *,
    token: str,
    name: str,
    arguments: Sequence[str],
    minutes: int,
    max_executors: int,
    tags: Mapping[str, str],
    memory: RunMemory | None = None,
) -> dict[str, Any]:
    """A StartJobRun request for this code, limited in time and size, with logs. The stack's schedules send it, too."""
    monitoring: dict[str, Any] = {"managedPersistenceMonitoringConfiguration": {"enabled": True}}
    if deployment.spark_logs:
        monitoring["s3MonitoringConfiguration"] = {"logUri": deployment.spark_logs}
    if deployment.spark_log_group:
        group = {"enabled": True, "logGroupName": deployment.spark_log_group}
        monitoring["cloudWatchLoggingConfiguration"] = group
    return {
        "applicationId": deployment.spark_application,
        "clientToken": token,
        "name": name,
        "executionRoleArn": deployment.spark_role,
        "executionTimeoutMinutes": minutes,
        "jobDriver": {
            "sparkSubmit": {
                "entryPoint": deployment.spark_entry_point,
                "entryPointArguments": list(arguments),
                "sparkSubmitParameters": _parameters(deployment, max_executors, memory or RunMemory()),
            }
        },
        "configurationOverrides": {"monitoringConfiguration": monitoring},
        "tags": dict(tags),
    }


def _parameters(deployment: Deployment, max_executors: int, memory: RunMemory) -> str:
    settings = {
        "spark.dynamicAllocation.enabled": "true",
        # Without this, EMR's limit is infinite.
        "spark.dynamicAllocation.maxExecutors": str(max_executors),
        "spark.dynamicAllocation.initialExecutors": "1",
        **memory.spark_settings(),
        "spark.sql.session.timeZone": "UTC",
    }
    environment = {"AWS_REGION": deployment.spark_region} if deployment.spark_region else {}
    if deployment.spark_packages:
        # Whether EMR's image has boto3 and pyarrow is not documented: we ship ours, and they come first.
        settings["spark.archives"] = f"{deployment.spark_packages}#packages"
        # The image has several Pythons, and our packages are built for one.
        environment |= {"PYTHONPATH": "./packages", "PYSPARK_PYTHON": PYTHON, "PYSPARK_DRIVER_PYTHON": PYTHON}
    for place in ("spark.emr-serverless.driverEnv", "spark.executorEnv"):
        settings |= {f"{place}.{name}": value for name, value in environment.items()}
    code = f"--py-files {deployment.spark_code} " if deployment.spark_code else ""
    return code + " ".join(f"--conf {name}={value}" for name, value in settings.items())


def client(region: str | None = None) -> Any:
    """A client that repeats a throttled request a few times. Because of the token, a repeated start is one job."""
    import boto3
    from botocore.config import Config

    config = Config(
        retries={"mode": "standard", "total_max_attempts": 3}, connect_timeout=5, read_timeout=10, tcp_keepalive=True
    )
    return boto3.client("emr-serverless", region_name=region or aws_region(), config=config)


def _job(found: Mapping[str, Any]) -> Job:
    state = str(found["state"])
    phase: Phase = "ended" if state in _ENDED else "running" if state in _RUNNING else "starting"
    tags = found.get("tags", {})
    return Job(
        id=str(found["jobRunId"]),
        run=str(tags.get(RUN_TAG) or found.get("name", "")),
        queue=str(tags.get(QUEUE_TAG, "")),
        phase=phase,
        succeeded=state == "SUCCESS",
        state=state,
        details=str(found.get("stateDetails", "")),
    )
