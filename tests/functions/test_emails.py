"""The emails queue: through a real SMTP server, and into a folder."""

from __future__ import annotations

import email
import json
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from queues import emails
from s3queue import Context, Processor
from support.outside_services import HOST, MailServer
from support.workbench import Workbench


@pytest.fixture(autouse=True)
def _nothing_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in emails.ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def outbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EMAIL_OUTBOX", str(tmp_path / "not yet" / "outbox"))
    return tmp_path / "not yet" / "outbox"


@pytest.fixture
def mail_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MailServer]:
    with MailServer.serve() as server:
        monkeypatch.setenv("EMAIL_SMTP_HOST", HOST)
        monkeypatch.setenv("EMAIL_SMTP_PORT", str(server.port))
        monkeypatch.setenv("EMAIL_SMTP_TLS", "off")
        yield server


class Emails:
    """The queue in memory, and its handler."""

    def __init__(self) -> None:
        self.bench = Workbench()
        self.queue = self.bench.queue("emails", max_attempts=3)
        self.processor = Processor(queue=self.queue, definition=emails.queue)

    def send(self, payload: Any = None, /, **fields: Any) -> str:
        self.path = self.queue.enqueue(payload or {"to": "ada@example.com", "subject": "Hello", **fields})
        return self.run()

    def run(self) -> str:
        return str(self.processor.run(self.path, read_first=True))

    def again(self) -> str:
        self.bench.clock.advance(60)
        return self.run()

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.bench.read(f"emails/records/{self.path}"))
        return found


@pytest.fixture
def queue() -> Emails:
    return Emails()


def mails(outbox: Path) -> list[Message]:
    return [email.message_from_bytes(path.read_bytes()) for path in sorted(outbox.iterdir())]


def test_a_mail_goes_through_smtp(queue: Emails, mail_server: MailServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAIL_FROM", "queue@example.org")
    assert queue.send(subject="Grüße", body="Hello Ada,\n.\nthat dot was yours.") == "completed"
    (received,) = mail_server.mails
    mail = email.message_from_bytes(received)
    assert (mail["To"], mail["From"]) == ("ada@example.com", "queue@example.org")
    assert str(email.header.make_header(email.header.decode_header(mail["Subject"]))) == "Grüße"
    assert "\n.\nthat dot" in mail.get_payload(decode=True).decode().replace("\r\n", "\n")
    assert mail["Message-ID"] in json.dumps(queue.record())


def test_a_recipient_refused_for_good_is_dead_at_once(queue: Emails, mail_server: MailServer) -> None:
    mail_server.rcpt = "550 5.1.1 no such user"
    assert queue.send() == "dead"
    assert "answered 550 5.1.1 no such user" in json.dumps(queue.record())


@pytest.mark.parametrize(("rcpt", "data"), [("451 greylisted", "250 OK"), ("250 OK", "452 disk full")])
def test_a_refusal_for_now_is_retried(queue: Emails, mail_server: MailServer, rcpt: str, data: str) -> None:
    mail_server.rcpt, mail_server.data = rcpt, data
    assert queue.send() == "retried"
    mail_server.rcpt = mail_server.data = "250 OK"
    assert queue.again() == "completed"
    assert len(mail_server.mails) == 1


def test_content_refused_for_good_is_dead_at_once(queue: Emails, mail_server: MailServer) -> None:
    mail_server.data = "554 5.7.1 spam"
    assert queue.send() == "dead"


def test_no_mail_server_is_no_verdict_on_the_mail(queue: Emails, monkeypatch: pytest.MonkeyPatch) -> None:
    with MailServer.serve() as gone:
        pass
    monkeypatch.setenv("EMAIL_SMTP_HOST", HOST)
    monkeypatch.setenv("EMAIL_SMTP_PORT", str(gone.port))
    monkeypatch.setenv("EMAIL_SMTP_TLS", "off")
    assert queue.send() == "retried"


def test_a_server_without_tls_gets_no_mail_unless_told_so(
    queue: Emails, mail_server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EMAIL_SMTP_TLS")
    assert queue.send() == "retried"
    assert mail_server.mails == []


def test_a_mail_becomes_one_file_and_a_second_delivery_the_same_one(queue: Emails, outbox: Path) -> None:
    queue.path = queue.queue.enqueue({"to": "ada@example.com", "subject": "Hello"})
    # A worker that crashed between the delivery and the record.
    crashed = queue.queue.claim(queue.path)
    assert crashed
    context = Context(claim=crashed, max_attempts=3, renew=queue.queue.extend)
    emails.queue.call(emails.queue.argument(crashed.message), context)
    (delivered,) = outbox.iterdir()
    before = delivered.read_bytes()
    queue.queue.fail(crashed, "lease expired")
    assert queue.again() == "completed"
    assert list(outbox.iterdir()) == [delivered]
    assert delivered.read_bytes() == before


def test_the_lines_of_a_batch_are_mails_of_their_own(queue: Emails, outbox: Path) -> None:
    same = {"to": "ada@example.com", "subject": "Twice on purpose"}
    (queue.path,) = queue.queue.enqueue_many([same, same])
    assert queue.run() == "completed"
    assert len({mail["Message-ID"] for mail in mails(outbox)}) == 2


def test_the_folder_greylists_and_bounces_as_mail_servers_do(queue: Emails, outbox: Path) -> None:
    assert queue.send(to="ada@flaky.example") == "retried"
    assert queue.again() == "completed"
    assert queue.send(to="nobody@bounce.example") == "dead"
    assert "550" in json.dumps(queue.record())
    assert [mail["To"] for mail in mails(outbox)] == ["ada@flaky.example"]


def test_without_a_server_and_a_folder_nothing_is_pretended(queue: Emails) -> None:
    assert [queue.send(), queue.again(), queue.again()] == ["retried", "retried", "dead"]
    assert "set EMAIL_SMTP_HOST, or EMAIL_OUTBOX" in json.dumps(queue.record())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        {"to": "nobody", "subject": "x"},
        {"to": "ada@example.com"},
        {"to": "ada@example.com", "subject": "x\r\nBcc: everyone@example.com"},
        {"to": "ada@example.com\nBcc: everyone@example.com", "subject": "x"},
        {"to": ["ada@example.com", "bob@example.com"], "subject": "x"},
        {"to": "ada@example.com", "subject": "x", "bcc": "everyone@example.com"},
    ],
)
def test_what_is_no_email_is_dead_at_once(queue: Emails, outbox: Path, body: Any) -> None:
    assert queue.send(body if body != b"" else b" ") == "dead"
    assert not outbox.exists()
