"""What EMR Serverless answers, and what it means: a refused start started nothing, a refused question says nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from botocore.exceptions import ClientError, NoCredentialsError

from s3queue.deployment import Deployment
from s3queue.errors import AccessDenied, Unavailable
from s3queue.spark_runs.emr_serverless import EmrServerless
from s3queue.spark_runs.service import JobRequest, NotStarted

REQUEST = JobRequest(run="run-1", queue="exports", bucket="bench", timeout=timedelta(hours=1), max_executors=4)
NOW = datetime(2026, 11, 18, tzinfo=UTC)


class Refusing:
    """A client that gets the same answer to everything."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, action: str):
        def ask(**_):
            raise self._error

        return ask


def answered(code: str, status: int) -> ClientError:
    told = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(told, "Anything")  # type: ignore[arg-type]


def service(error: Exception) -> EmrServerless:
    return EmrServerless(Refusing(error), Deployment(bucket="bench", workers={}, spark_application="app-1"))


QUESTIONS = [
    lambda jobs: jobs.get("job-1"),
    lambda jobs: jobs.find("run-1", since=NOW),
    lambda jobs: jobs.cancel("job-1"),
]
REFUSALS = [answered("ThrottlingException", 429), answered("ValidationException", 400), NoCredentialsError()]


@pytest.mark.parametrize("error", REFUSALS)
@pytest.mark.parametrize("ask", QUESTIONS)
def test_a_question_that_was_refused_says_nothing_about_a_job(ask, error):
    with pytest.raises(Unavailable):
        ask(service(error))


@pytest.mark.parametrize("error", REFUSALS)
def test_a_start_that_was_refused_started_nothing(error):
    with pytest.raises(NotStarted):
        service(error).start(REQUEST)


def test_a_start_without_an_answer_may_have_started_a_job():
    with pytest.raises(Unavailable):
        service(answered("InternalServerException", 500)).start(REQUEST)


def test_what_does_not_exist_is_none_and_what_is_not_allowed_is_said():
    missing, denied = answered("ResourceNotFoundException", 404), answered("AccessDeniedException", 403)
    assert service(missing).get("job-1") is None
    assert service(missing).find("run-1", since=NOW) is None
    for ask in (*QUESTIONS, lambda jobs: jobs.start(REQUEST)):
        with pytest.raises(AccessDenied):
            ask(service(denied))
