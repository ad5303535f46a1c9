"""The HTTP side of the local EMR Serverless: who is let in, and which call a request is.

It answers to those who know a token, which is the first part of the endpoint's path and new at every start; who name
this host; and who are not another site's page.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import re
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from .serverless import EmrServerless

_log = logging.getLogger(__name__)
_APPLICATION = re.compile(r"/applications/(?P<application>[^/]+)")
_STOP = re.compile(r"/applications/(?P<application>[^/]+)/stop")
_RUNS = re.compile(r"/applications/(?P<application>[^/]+)/jobruns/?")
_RUN = re.compile(r"/applications/(?P<application>[^/]+)/jobruns/(?P<run>[^/]+)")
_DASHBOARD = re.compile(r"/applications/(?P<application>[^/]+)/jobruns/(?P<run>[^/]+)/dashboard")
#: Where GetDashboardForJobRun leads to.
_LOGS = re.compile(r"/logs/(?P<run>[^/]+)")
#: Larger than any request of ours, and than EMR takes.
MOST_BYTES = 1024 * 1024
JSON = "application/json"


class Refused(Exception):
    """An answer as the service gives it: status, error type, words."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


def handler_for(emr: EmrServerless) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            # Whoever was killed hangs up in the middle: nothing to report.
            with contextlib.suppress(ConnectionError):
                super().handle()

        def do_POST(self) -> None:
            if not self._is_let_in(emr.token):
                return
            if _STOP.fullmatch(urlsplit(self.path).path):
                self._answer("StopApplication", _STOP, lambda found, query: emr.stop_application())
                return
            kind = self.headers.get_content_type()
            length = self.headers.get("Content-Length") or ""
            if kind != JSON:
                self._refuse(415, f"{kind} is not understood: send {JSON}")
            elif not (length.isascii() and length.isdigit() and int(length) <= MOST_BYTES):
                self._refuse(413, f"a request says its length, of at most {MOST_BYTES} bytes")
            else:
                body = self.rfile.read(int(length))
                self._answer("StartJobRun", _RUNS, lambda found, query: emr.start_job_run(json.loads(body or b"{}")))

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            if path.startswith(f"/{emr.logs_token}/"):
                if self._is_let_in(emr.logs_token):
                    self._show_logs(_LOGS.fullmatch(urlsplit(self.path).path))
                return
            if not self._is_let_in(emr.token):
                return
            path = urlsplit(self.path).path
            if _DASHBOARD.fullmatch(path):
                self._answer("GetDashboardForJobRun", _DASHBOARD, lambda found, query: emr.dashboard(found["run"]))
            elif _APPLICATION.fullmatch(path):
                self._answer("GetApplication", _APPLICATION, lambda found, query: emr.get_application())
            elif _RUN.fullmatch(path):
                self._answer("GetJobRun", _RUN, lambda found, query: emr.get_job_run(found["run"]))
            else:
                self._answer("ListJobRuns", _RUNS, lambda found, query: emr.list_job_runs(query))

        def do_DELETE(self) -> None:
            if self._is_let_in(emr.token):
                self._answer("CancelJobRun", _RUN, lambda found, query: emr.cancel_job_run(found["run"]))

        def _is_let_in(self, token: str) -> bool:
            """Whether this request is of somebody who knows the token; it is taken off the path."""
            said, _, rest = self.path.removeprefix("/").partition("/")
            origin = self.headers.get("Origin", "").rpartition("//")[2]
            site = self.headers.get("Sec-Fetch-Site", "none")
            if self.headers.get("Host") not in emr.hosts:
                self._refuse(421, "this server answers for 127.0.0.1 only")
            elif origin not in {"", *emr.hosts} or site not in ("none", "same-origin"):
                self._refuse(403, "another site asked for this")
            elif not hmac.compare_digest(said.encode(), token.encode()):
                self._refuse(403, "the token that this service was started with is missing")
            else:
                self.path = f"/{rest}"
                return True
            return False

        def _refuse(self, status: int, message: str) -> None:
            # The body was not read: what is left of it would be the next request.
            self.close_connection = True
            headers = {"x-amzn-ErrorType": "AccessDeniedException", "Connection": "close"}
            self._write(status, json.dumps({"message": message}).encode(), JSON, headers)

        def _answer(self, action: str, pattern: re.Pattern[str], call: Callable[..., dict[str, Any]]) -> None:
            if emr.stopped:
                self.close_connection = True
                return
            parts = urlsplit(self.path)
            found = pattern.fullmatch(parts.path)
            try:
                if found is None:
                    raise Refused(404, "ResourceNotFoundException", f"there is nothing at {parts.path}")
                if found["application"] != emr.application:
                    raise Refused(
                        404, "ResourceNotFoundException", f"Application {found['application']} does not exist"
                    )
                emr.requests.append((action, found.groupdict().get("run", "")))
                self._send(200, call(found, parse_qs(parts.query)))
            except Refused as refused:
                self._send(refused.status, {"message": str(refused)}, refused.kind)
            except ConnectionAbortedError:
                # The job runs, and nobody is told.
                self.close_connection = True
            except Exception as error:
                _log.exception("%s failed", action)
                self._send(500, {"message": repr(error)}, "InternalServerException")

        def _show_logs(self, found: re.Match[str] | None) -> None:
            try:
                if found is None:
                    raise Refused(404, "ResourceNotFoundException", "there is nothing here")
                # Whatever a job has logged is text, also to a browser that thinks it is a page.
                plain = {"X-Content-Type-Options": "nosniff"}
                self._write(200, emr.logs(found["run"]), "text/plain; charset=utf-8", plain)
            except Refused as refused:
                self._write(refused.status, f"{refused}\n".encode(), "text/plain; charset=utf-8")

        def _send(self, status: int, answer: Mapping[str, Any], error: str = "") -> None:
            headers = {"x-amzn-ErrorType": error} if error else {}
            self._write(status, json.dumps(answer).encode(), JSON, headers)

        def _write(self, status: int, body: bytes, kind: str, headers: Mapping[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            _log.debug(format, *arguments)

    return Handler
