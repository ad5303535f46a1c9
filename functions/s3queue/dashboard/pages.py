"""The files of the dashboard's page, served from the package: no build step, no CDN, no file from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aws_lambda_powertools.event_handler import Response

from .resolver import JSON, Resolver

FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FRONT = "index.html"


def is_page(path: str) -> bool:
    """Whether it is one of the page's own files, which hold nothing that is not in this package."""
    name = FRONT if path == "/" else path.removeprefix("/")
    return "/" not in name and Path(name).suffix in TYPES and (FOLDER / name).is_file()


def register_pages(app: Resolver) -> None:
    """One route for each file, so that no request can name another one."""
    for file in sorted(FOLDER.iterdir()):
        if file.suffix in TYPES:
            _register(app, "/" if file.name == FRONT else f"/{file.name}", file)


def register_document(app: Resolver, document: Callable[[], dict[str, Any]]) -> None:
    """The OpenAPI document, made when it is asked for."""

    @app.get("/openapi.json", include_in_schema=False)
    def openapi() -> Response[str]:
        return Response(200, content_type=JSON, body=json.dumps(document()))


def _register(app: Resolver, rule: str, file: Path) -> None:
    @app.get(rule, include_in_schema=False)
    def page() -> Response[str]:
        return Response(200, content_type=TYPES[file.suffix], body=file.read_text("utf-8"))
