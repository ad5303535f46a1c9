"""What S3's refusals mean, where the answer itself does not make it plain."""

from __future__ import annotations

import pytest

from s3queue.errors import AccessDenied, InvalidName, QueueError, Unavailable, Unreadable
from s3queue.stores.s3_errors import refusal

SSE_C = "The object was stored using a form of Server Side Encryption. The correct parameters must be provided"


def refused(verb: str, status: int, code: str, said: str = "", key: str = "orders/messages/x") -> QueueError:
    return refusal(status, code, said, verb, "jobs", key, retried=False)


@pytest.mark.parametrize("verb", ["get", "copy"])
def test_what_only_its_producer_can_read_is_unreadable(verb: str) -> None:
    assert type(refused(verb, 400, "InvalidRequest", SSE_C)) is Unreadable


@pytest.mark.parametrize("verb", ["get", "head", "copy", "put"])
@pytest.mark.parametrize("code", ["ThrottlingException", "KMS.ThrottlingException", "KMS.DependencyTimeoutException"])
def test_a_key_service_that_is_busy_says_nothing_of_the_object(verb: str, code: str) -> None:
    """A record that counted as garbage would be replaced: a second outcome.  [P3]"""
    assert type(refused(verb, 400, code, "You have exceeded the rate at which you may call KMS.")) is Unavailable


@pytest.mark.parametrize("code", ["KMS.DisabledException", "KMS.NotFoundException", "KMS.KMSInvalidStateException"])
def test_what_is_under_a_key_that_is_gone_is_unreadable(code: str) -> None:
    assert type(refused("get", 400, code)) is Unreadable


@pytest.mark.parametrize("said", ["", "Bad Request"], ids=["direct", "boto3"])
def test_a_head_of_it_is_refused_as_one_without_permission_is(said: str) -> None:
    """Its answer has no body: an expired token is answered in the same way, and says nothing of the object."""
    error = refused("head", 400, "400", said)

    assert type(error) is AccessDenied
    assert "SSE-C" in str(error)
    assert "AWS_PROFILE" in str(error)


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidToken"])
@pytest.mark.parametrize("verb", ["get", "head", "copy", "list"])
def test_credentials_that_are_not_valid_say_nothing_of_the_object(verb: str, code: str) -> None:
    assert type(refused(verb, 400, code, "The provided token has expired.")) is AccessDenied


def test_a_head_of_a_key_that_is_too_long_says_so() -> None:
    assert type(refused("head", 400, "400", key="x" * 1025)) is InvalidName
