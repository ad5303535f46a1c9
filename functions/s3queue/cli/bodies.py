"""How payloads are shown: only on request, cut to a size, and without control characters."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from s3queue.store import Object

from .words import bytes_, clean

#: How much of a payload is shown; `show --save` writes all of it.
SHOWN_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Body:
    """The beginning of a payload."""

    start: bytes
    size: int

    @classmethod
    def read(cls, stored: Object) -> Body:
        with stored.stream as stream:
            return cls(stream.read(SHOWN_BYTES), stored.size)

    def to_json(self) -> dict[str, Any]:
        """`body` if it is text, otherwise `body_base64`; `body_cut` if there is more."""
        cut = {"body_cut": True} if self.size > SHOWN_BYTES else {}
        try:
            return {"body": self.start.decode()} | cut
        except UnicodeDecodeError:
            return {"body_base64": base64.b64encode(self.start).decode()} | cut

    def text(self) -> Text:
        """For a terminal: line breaks and tabs unchanged, every other control character made visible."""
        text = clean(self.start.decode("utf-8", "backslashreplace"), keep="\n\t")
        if self.size > SHOWN_BYTES:
            text += f"\n… {bytes_(self.size - SHOWN_BYTES)} more; s3queue show PATH --save FILE"
        return Text(text)
