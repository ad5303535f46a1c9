"""PublishedSettings: what a queue's definition says, for operators, who have none; `{queue}/queue-settings.json`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Literal, cast, get_args

from s3queue.encoding import NONSENSE, as_object, cut, dump, load_current
from s3queue.errors import CorruptState
from s3queue.settings import QueueSettings
from s3queue.store import Object

#: Who published them: the sweeper of a deployment, or a pull worker when it started.
Publisher = Literal["deployment", "worker"]
#: A larger document is not read.
SETTINGS_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSettings:
    """The settings of a queue's definition, before `queue.json`, and who published them when."""

    settings: QueueSettings
    by: Publisher
    written_at: datetime

    @staticmethod
    def to_bytes(settings: QueueSettings, by: Publisher) -> bytes:
        """Only what differs from the defaults, always in the same bytes: what is there already is not written again."""
        defaults = QueueSettings().to_json()
        changed = {name: value for name, value in settings.to_json().items() if value != defaults[name]}
        return dump({"by": by, "settings": dict(sorted(changed.items()))})

    @classmethod
    def read(cls, found: Object) -> PublishedSettings:
        """Raises CorruptState, which names the key, if these are none; NewerFormat if a newer version wrote them.

        A setting that this version does not have is left out.
        """
        document = load_current(found.read(SETTINGS_BYTES), found.key)
        try:
            return cls(settings=_settings(document), by=_publisher(document["by"]), written_at=found.modified_at)
        except NONSENSE as error:
            raise CorruptState(f"{found.key} has no settings: {cut(error)}; delete it") from None


def _settings(document: dict[str, Any]) -> QueueSettings:
    known = {field.name for field in fields(QueueSettings)}
    given = as_object(document.get("settings", {}))
    return QueueSettings.of(
        **{name: one for name, one in given.items() if {name, name.removesuffix("_seconds")} & known}
    )


def _publisher(value: Any) -> Publisher:
    if value not in get_args(Publisher):
        raise ValueError(f"unknown publisher {value!r}")
    return cast(Publisher, value)
