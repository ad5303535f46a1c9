"""emails: sends mail through SMTP or, where there is no mail server, into a folder.

`EMAIL_SMTP_HOST` names a server (with `EMAIL_SMTP_PORT`, `EMAIL_SMTP_USER`, the secret `EMAIL_SMTP_PASSWORD`, and
`EMAIL_SMTP_TLS`, which is `starttls`, `tls` or `off`). Otherwise `EMAIL_OUTBOX` names a folder in which every mail
becomes one `.eml` file. Two domains that nobody can own behave as with a real mail server: mail to `flaky.example` is
greylisted (451, try again later) at its first attempt; mail to `bounce.example` has no mailbox (550) and is dead at
once.

Mail is sent at least once: after a crash it may be sent again, with the same `Message-ID` and the same file name.
"""

from __future__ import annotations

import hashlib
import os
import smtplib
import ssl
import tempfile
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, EmailStr, Field

from s3queue.errors import Reject
from s3queue.worker.context import Context
from s3queue.worker.definition import define
from s3queue.worker.secrets import secret

SMTP_SECONDS = 10.0
DEFAULT_SENDER = "s3queue@localhost.localdomain"
ENVIRONMENT = (
    "EMAIL_FROM",
    "EMAIL_OUTBOX",
    "EMAIL_SMTP_HOST",
    "EMAIL_SMTP_PORT",
    "EMAIL_SMTP_TLS",
    "EMAIL_SMTP_USER",
)
SECRETS = ("EMAIL_SMTP_PASSWORD",)

queue = define(
    "emails",
    visibility_timeout=60,
    handler_timeout=25,
    max_attempts=3,
    retry_base=2,
    concurrency=5,
    memory_mib=256,
    max_message_size="1 MiB",
)


class Email(BaseModel):
    """What producers PUT, as JSON."""

    # An address is personal: an error says which field is wrong, not what was in it.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    to: EmailStr
    # One line: a second line could be a header.
    subject: str = Field(min_length=1, max_length=998, pattern=r"^[^\r\n]*$")
    body: str = ""


@queue.handler
def send(email: Email, context: Context) -> dict[str, str]:
    """Deliver one mail. If recipient or content is refused for good (5xx), it is dead at once; else it is retried.

    A refused login or sender is a 5xx too, but an error of our configuration and not of the message: it is retried.
    """
    mail = compose(email, context)
    try:
        deliver(mail, context)
    except smtplib.SMTPRecipientsRefused as refused:
        # One recipient, so one answer.
        code, text = next(iter(refused.recipients.values()))
        raise _verdict(code, text) from None
    except smtplib.SMTPDataError as refused:
        raise _verdict(refused.smtp_code, refused.smtp_error) from None
    return {"message_id": str(mail["Message-ID"])}


def compose(email: Email, context: Context) -> EmailMessage:
    """The same bytes at every attempt, so that a second delivery can be recognised."""
    identity = f"{context.queue}/{context.path}/{context.line}/{context.enqueued_at.isoformat()}"
    mail = EmailMessage()
    mail["From"] = os.environ.get("EMAIL_FROM", DEFAULT_SENDER)
    mail["To"] = email.to
    mail["Subject"] = email.subject
    mail["Date"] = format_datetime(context.enqueued_at)
    mail["Message-ID"] = f"<{hashlib.sha256(identity.encode()).hexdigest()[:32]}@s3queue>"
    mail.set_content(email.body)
    return mail


def deliver(mail: EmailMessage, context: Context) -> None:
    if host := os.environ.get("EMAIL_SMTP_HOST"):
        _through_smtp(mail, host)
    elif outbox := os.environ.get("EMAIL_OUTBOX"):
        _into_folder(mail, Path(outbox), context.attempt)
    else:
        raise RuntimeError("no mail server is configured: set EMAIL_SMTP_HOST, or EMAIL_OUTBOX to a folder")


def _through_smtp(mail: EmailMessage, host: str) -> None:
    security = os.environ.get("EMAIL_SMTP_TLS", "starttls")
    if security not in ("starttls", "tls", "off"):
        raise RuntimeError(f"EMAIL_SMTP_TLS must be starttls, tls or off, not {security!r}")
    port = int(os.environ.get("EMAIL_SMTP_PORT") or {"tls": 465, "starttls": 587, "off": 25}[security])
    connection = (
        smtplib.SMTP_SSL(host, port, timeout=SMTP_SECONDS, context=ssl.create_default_context())
        if security == "tls"
        else smtplib.SMTP(host, port, timeout=SMTP_SECONDS)
    )
    with connection as server:
        if security == "starttls":
            server.starttls(context=ssl.create_default_context())
        if user := os.environ.get("EMAIL_SMTP_USER"):
            server.login(user, secret("EMAIL_SMTP_PASSWORD"))
        server.send_message(mail)


def _into_folder(mail: EmailMessage, outbox: Path, attempt: int) -> None:
    to = str(mail["To"])
    domain = to.rpartition("@")[2]
    if domain == "bounce.example":
        raise smtplib.SMTPRecipientsRefused({to: (550, b"5.1.1 no such mailbox")})
    if domain == "flaky.example" and attempt == 1:
        raise smtplib.SMTPRecipientsRefused({to: (451, b"4.7.1 greylisted, try again later")})
    outbox.mkdir(parents=True, exist_ok=True)
    name = str(mail["Message-ID"]).strip("<>").partition("@")[0]
    # Written under another name and renamed, so that whoever watches the folder sees only whole mails.
    with tempfile.NamedTemporaryFile(dir=outbox, prefix=".unfinished-", delete=False) as unfinished:
        unfinished.write(bytes(mail))
    Path(unfinished.name).replace(outbox / f"{name}.eml")


def _verdict(code: int, text: bytes | str) -> Exception:
    said = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    reason = f"the mail server answered {code} {said}"
    return Reject(reason) if 500 <= code < 600 else ConnectionError(reason)
