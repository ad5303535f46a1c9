"""Console: addresses of AWS's own console, where the logs of workers and Spark runs are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

#: A worker function's id is the function's name, the end of its log stream, and a mark of its start; see
#: handlers/worker.py. A pull worker's own name has another shape, or no log group that could be known here.
_FUNCTION = re.compile(r"([A-Za-z0-9_-]{1,64}?)-(?:[0-9a-f]{12}-[0-9a-f]{8}|[0-9a-f]{12})")
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-[0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """Knows no address unless it knows the region: an emulator has no console."""

    region: str = ""
    #: Where Spark runs log to; empty: not known.
    spark_log_group: str = ""

    def worker_logs(self, worker: str | None) -> str | None:
        """The log lines of a worker function; None for every other worker.

        Each line holds the worker's id, which is therefore what is searched for: a stream is shared by several starts.
        """
        found = _FUNCTION.fullmatch(worker or "")
        return self._search(f"/aws/lambda/{found[1]}", worker or "") if found else None

    def logs_of(self, workers: Iterable[str | None]) -> dict[str, str]:
        """Worker → address, of those that have one."""
        return {worker: url for worker in workers if worker and (url := self.worker_logs(worker))}

    def run_logs(self, run: str) -> str | None:
        """The log lines that name a Spark run."""
        return self._search(self.spark_log_group, run) if self.spark_log_group else None

    def _search(self, group: str, text: str) -> str | None:
        if not _REGION.fullmatch(self.region):
            return None
        host = f"https://{self.region}.console.aws.amazon.com/cloudwatch/home?region={self.region}"
        asked = f"{_twice(group)}/log-events$3FfilterPattern$3D{_twice(quoted(text))}"
        return f"{host}#logsV2:log-groups/log-group/{asked}"


def quoted(text: str) -> str:
    """As a filter pattern of CloudWatch that finds the text as it is."""
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))


def _twice(text: str) -> str:
    """The console decodes its fragment twice, and writes a dollar where others write a percent sign."""
    return quote(quote(text, safe=""), safe="").replace("%", "$")
