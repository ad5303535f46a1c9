"""EMR Serverless on this machine: the calls that we use, over HTTP, with real jobs behind them.

boto3 is pointed at it by `AWS_ENDPOINT_URL_EMR_SERVERLESS`; nothing that talks to it can tell. Paths and answers are
those of the service's model (rest-json).

It runs code, and a page in the developer's browser or another user of this machine reaches its port, too. So it answers
to those who know a token, which is the first part of the endpoint's path and new at every start; who name this host;
who are no other site's page; and it runs nothing but the stack's own assets.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import shutil
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .front_door import Refused, handler_for
from .job_runs import ENDED, JobRun, options_of

_log = logging.getLogger(__name__)
HOST = "127.0.0.1"
ACCOUNT = "000000000000"
RELEASE = "emr-spark-8.1.0"
#: What an application is set to unless told; the deployed one is the same.
MAX_CONCURRENT_RUNS = 2
#: What a run of ours sets. Others name classes, jars and options that a JVM would load.
_SETTING = re.compile(
    r"spark\.(?:dynamicAllocation\.\w+|(?:driver|executor)\.(?:cores|memory|memoryOverhead)|sql\.session\.timeZone"
    r"|archives|(?:emr-serverless\.driverEnv|executorEnv)\.(?:PYTHONPATH|PYSPARK_(?:DRIVER_)?PYTHON|AWS_REGION))"
)


class EmrServerless:
    """One application. `with EmrServerless(...) as emr:` serves it; leaving ends every job."""

    def __init__(
        self,
        folder: Path,
        *,
        application: str = "00local0spark0",
        environment: Mapping[str, str] | None = None,
        on_change: Callable[[Mapping[str, Any]], None] = lambda event: None,
        max_concurrent_runs: int = MAX_CONCURRENT_RUNS,
        command: Callable[[JobRun], list[str]] | None = None,
        port: int = 0,
        token: str = "",
        assets: Sequence[str] = (),
    ) -> None:
        """`assets`: what code may come from, as the beginnings of its addresses."""
        self.application = application
        self.token = token or secrets.token_hex(20)
        #: Shows what jobs have logged and nothing more: this one gets into a browser's history.
        self.logs_token = secrets.token_hex(20)
        self._assets = tuple(assets)
        self.jobs: dict[str, JobRun] = {}
        #: The next so many StartJobRun are throttled; answers that get lost after the job was started.
        self.throttled = 0
        self.lost_answers = 0
        self.stopped = False
        #: Every request, as (action, job id).
        self.requests: list[tuple[str, str]] = []
        self._folder = folder
        self._environment = dict(environment or {})
        self._on_change = on_change
        self._command = command
        self._state = "CREATED"
        self._tokens: dict[str, tuple[dict[str, Any], str]] = {}
        self._turns = threading.Semaphore(max_concurrent_runs)
        self._mutex = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._server = ThreadingHTTPServer((HOST, port), handler_for(self))
        self._server.daemon_threads = True

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self._server.server_address[1]}"

    @property
    def endpoint(self) -> str:
        """For boto3, which puts the path of each request behind it."""
        return f"{self.address}/{self.token}"

    @property
    def hosts(self) -> set[str]:
        return {f"{name}:{self._server.server_address[1]}" for name in (HOST, "localhost")}

    def __enter__(self) -> EmrServerless:
        threading.Thread(target=self._server.serve_forever, name="emr", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        # Connections that boto3 keeps open would otherwise go on being answered.
        self.stopped = True
        self._server.shutdown()
        self._server.server_close()
        for job in list(self.jobs.values()):
            job.cancel()
        for thread in self._threads:
            thread.join(timeout=20)

    # The service's calls

    def start_job_run(self, request: dict[str, Any]) -> dict[str, Any]:
        token = request.pop("clientToken", "")
        if not token or "sparkSubmit" not in request.get("jobDriver", {}) or not request.get("executionRoleArn"):
            raise Refused(400, "ValidationException", "clientToken, executionRoleArn and jobDriver are needed")
        self._check_code(request["jobDriver"]["sparkSubmit"])
        with self._mutex:
            if self.throttled:
                self.throttled -= 1
                raise Refused(429, "ThrottlingException", "Rate exceeded")
            known = self._tokens.get(token)
            if known and known[0] != request:
                raise Refused(409, "ConflictException", f"clientToken {token} was used for another request")
            job = known[1] if known else self._start(request)
            self._tokens[token] = (request, job)
            if self.lost_answers:
                self.lost_answers -= 1
                raise ConnectionAbortedError
        return {"applicationId": self.application, "jobRunId": job, "arn": self._arn(job)}

    def _check_code(self, spark: Mapping[str, Any]) -> None:
        """Only what the stack consists of is run.

        Raises:
            Refused: code from elsewhere, or an option that could bring some.
        """
        given = list(options_of(spark.get("sparkSubmitParameters") or ""))
        code = [uri for option, value in given if option == "--py-files" for uri in value.split(",")]
        for uri in (str(spark.get("entryPoint") or ""), *code):
            if not uri.startswith(self._assets) or ".." in uri.split("/"):
                raise Refused(400, "ValidationException", f"{uri} is none of this stack's assets")
        for option, value in given:
            if option != "--py-files" and not (option == "--conf" and _SETTING.fullmatch(value.partition("=")[0])):
                raise Refused(400, "ValidationException", f"{option} {value} is not an option of this stack's runs")

    def _start(self, request: dict[str, Any]) -> str:
        id = f"00{uuid.uuid4().hex[:14]}"
        self._state = "STARTED"
        job = self.jobs[id] = JobRun(
            id=id,
            application=self.application,
            request=request,
            folder=self._folder / id,
            environment=self._environment,
            changed=self._changed,
            fetch=self._fetch,
            command=self._command,
        )
        thread = threading.Thread(target=self._execute, args=(job,), name=id, daemon=True)
        self._threads.append(thread)
        thread.start()
        return id

    def _execute(self, job: JobRun) -> None:
        """Wait as QUEUED while as many as may run do, then run."""
        if not self._turns.acquire(blocking=False):
            job.become("QUEUED")
            while not self._turns.acquire(timeout=0.1):
                if job.is_cancelled:
                    job.become("CANCELLED", "it was cancelled before it started")
                    return
        try:
            job.execute()
        finally:
            self._turns.release()

    def _changed(self, job: JobRun, before: str) -> None:
        _log.info("%s: %s → %s %s", job.id, before, job.state, job.details)
        event = {
            "version": "0",
            "id": str(uuid.uuid4()),
            "detail-type": "EMR Serverless Job Run State Change",
            "source": "aws.emr-serverless",
            "account": ACCOUNT,
            "time": job.updated_at.isoformat(timespec="seconds").replace("+00:00", "Z"),
            "resources": [],
            "detail": {
                "jobRunId": job.id,
                "applicationId": job.application,
                "state": job.state,
                "previousState": before,
                "releaseLabel": RELEASE,
            },
        }
        try:
            self._on_change(event)
        except Exception as error:
            # Best effort, as on AWS: whoever depends on it asks by itself.
            _log.warning("the event of %s was not delivered: %s", job.id, error)

    def get_application(self) -> dict[str, Any]:
        described = {"applicationId": self.application, "name": "local", "arn": self._arn(""), "type": "Spark"}
        dates = {"createdAt": 0, "updatedAt": 0}
        return {"application": described | dates | {"state": self._state, "releaseLabel": RELEASE}}

    def stop_application(self) -> dict[str, Any]:
        """As on EMR, the next StartJobRun starts it again."""
        with self._mutex:
            if under_way := [job.id for job in self.jobs.values() if job.state not in ENDED]:
                raise Refused(400, "ValidationException", f"runs are under way: {', '.join(under_way)}")
            self._state = "STOPPED"
        return {}

    def get_job_run(self, run: str) -> dict[str, Any]:
        return {"jobRun": self._described(self._job(run))}

    def list_job_runs(self, query: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        states = set(query.get("states", ()))
        after = [datetime.fromisoformat(text) for text in query.get("createdAtAfter", ())]
        runs = [
            {**{k: v for k, v in self._described(job).items() if k != "jobDriver"}, "id": job.id}
            for job in sorted(self.jobs.values(), key=lambda job: job.created_at, reverse=True)
            if (not states or job.state in states) and all(job.created_at >= instant for instant in after)
        ]
        return {"jobRuns": runs[: int(query.get("maxResults", ["50"])[0])]}

    def cancel_job_run(self, run: str) -> dict[str, Any]:
        self._job(run).cancel()
        return {"applicationId": self.application, "jobRunId": run}

    def dashboard(self, run: str) -> dict[str, Any]:
        """The driver's logs, while they are written and afterwards: a Spark UI would cost each job a second more."""
        return {"url": f"{self.address}/{self.logs_token}/logs/{self._job(run).id}"}

    def logs(self, run: str) -> bytes:
        """What a job has said so far."""
        return b"".join(b"== %s\n%s\n" % (log.name.encode(), log.read_bytes()) for log in self._job(run).logs)

    def _job(self, run: str) -> JobRun:
        if run not in self.jobs:
            raise Refused(404, "ResourceNotFoundException", f"Job run {run} does not exist")
        return self.jobs[run]

    def _described(self, job: JobRun) -> dict[str, Any]:
        return {
            "applicationId": job.application,
            "jobRunId": job.id,
            "arn": self._arn(job.id),
            "name": job.request.get("name", ""),
            "createdBy": f"arn:aws:iam::{ACCOUNT}:root",
            "createdAt": job.created_at.timestamp(),
            "updatedAt": job.updated_at.timestamp(),
            "executionRole": job.request["executionRoleArn"],
            "executionTimeoutMinutes": job.request.get("executionTimeoutMinutes", 720),
            "state": job.state,
            "stateDetails": job.details,
            "releaseLabel": RELEASE,
            "jobDriver": job.request["jobDriver"],
            "tags": job.request.get("tags", {}),
        }

    def _arn(self, job: str) -> str:
        return f"arn:aws:emr-serverless:us-east-1:{ACCOUNT}:/applications/{self.application}/jobruns/{job}"

    def _fetch(self, uri: str, folder: Path) -> Path:
        """A copy of its own, as on EMR: what lies beside the original must not be importable."""
        parts = urlsplit(uri)
        target = folder / Path(parts.path).name
        if parts.scheme in ("", "file"):
            shutil.copyfile(parts.path, target)
        else:
            import boto3

            session = boto3.session.Session(
                aws_access_key_id=self._environment["AWS_ACCESS_KEY_ID"],
                aws_secret_access_key=self._environment["AWS_SECRET_ACCESS_KEY"],
                region_name=self._environment.get("AWS_REGION", "us-east-1"),
            )
            endpoint, trusted = self._environment.get("AWS_ENDPOINT_URL"), self._environment.get("AWS_CA_BUNDLE")
            s3 = session.client("s3", endpoint_url=endpoint, verify=trusted)
            s3.download_file(parts.netloc, parts.path.lstrip("/"), str(target))
        return target


def deliver_to(function: str, client: Any) -> Callable[[Mapping[str, Any]], None]:
    """Events to the sweeper function, as EventBridge delivers them; `client` is boto3's for Lambda."""

    def deliver(event: Mapping[str, Any]) -> None:
        client.invoke(FunctionName=function, InvocationType="Event", Payload=json.dumps(event).encode())

    return deliver
