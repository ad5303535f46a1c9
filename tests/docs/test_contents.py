"""The documents keep their form: a short README in its order, every alarm and public name where one looks for it."""

from __future__ import annotations

import re

import s3queue
from support import document_commands
from support.documents import DOCUMENTS, ROOT, read

SECTIONS = [
    "Try it",
    "Write a queue",
    "Test your handlers",
    "What it promises",
    "Deploy",
    "Operate",
    "What it costs",
    "How fast it is",
    "Map of the repository",
    "Develop",
]


def test_the_readme_is_short_and_in_its_order():
    text = read("README.md")

    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    assert len(text.splitlines()) <= 245
    assert "**It is not for you**" in text.partition("\n## ")[0]


def test_to_try_it_takes_two_commands():
    first = read("README.md").partition("```console\n")[2].partition("```")[0]

    assert [line.partition("#")[0].strip() for line in first.splitlines()] == ["$ make demo", "$ make test"]


def test_every_promise_is_in_the_readme_as_the_protocol_has_it():
    promised = re.findall(r"^\| \[(P\d+)\]", read("functions/s3queue/PROTOCOL.md"), re.MULTILINE)

    assert re.findall(r"^\| (P\d+) \|", read("README.md"), re.MULTILINE) == promised


def test_every_alarm_has_an_answer():
    alarms = alarm_names()

    assert len(alarms) == 11
    for document in ("README.md", "docs/operations.md"):
        answered = {name for name in alarms if re.search(rf"^\|.*`{name}(-QUEUE)?`.*\|", read(document), re.MULTILINE)}
        assert alarms - answered == set(), f"{document} does not say what to do"


def alarm_names() -> set[str]:
    """The ids of the alarms, from the source: to synthesize the stack takes longer than all of these tests."""
    for module in (ROOT / "infra").rglob("*.py"):
        text = module.read_text(encoding="utf-8")
        if "class Monitoring(" in text:
            of_queues = re.findall(r'f"(\w+)-\{name\}"', text)
            of_stack = re.findall(
                r'"(Sweeper(?:Silent|Failing)|PipelineNotStarted|RunFailed|RunsFailed|ArchiveLate)(?:\{which\})?"', text
            )
            return {*of_queues, *of_stack}
    raise AssertionError("no module below infra defines Monitoring")


def test_every_option_of_the_deployment_is_explained():
    page = read("docs/operations.md")

    assert [name for name in document_commands.cdk_options() if f"| `{name}` |" not in page] == []


def test_the_reference_has_every_public_name_once():
    named = re.findall(r"^::: s3queue\.(\w+)$", read("docs/reference.md"), re.MULTILINE)

    assert sorted(named) == sorted(s3queue.__all__)


def test_every_decision_has_its_three_parts_and_is_listed():
    pages = [page for page in sorted((ROOT / "docs/decisions").glob("*.md")) if page.name != "index.md"]
    index = read("docs/decisions/index.md")

    assert pages
    for page in pages:
        parts = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert parts == ["Context", "Decision", "Consequences"], page.name
        assert f"({page.name})" in index


def test_every_room_is_on_the_map():
    rooms = {path.parent.name for path in (ROOT / "functions/s3queue").glob("*/__init__.py")}
    map_ = read("docs/architecture.md").partition("## Rooms")[2].partition("\n## ")[0]

    assert rooms
    assert {room for room in rooms if f"functions/s3queue/{room})" not in map_} == set()
    assert {room for room in rooms if f"`{room}`" not in read("README.md")} == set()


def test_every_release_says_what_it_does_to_stored_objects():
    releases = read("CHANGELOG.md").split("\n## ")[1:]

    assert releases
    assert [release.splitlines()[0] for release in releases if "\n### Stored format\n" not in release] == []


def test_every_test_that_a_document_names_exists():
    """A threat whose test was renamed or dropped would look as if it were held."""
    tests = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}
    defined = {name for text in tests.values() for name in re.findall(r"^\s*def (test_\w+)", text, re.MULTILINE)}
    for document in DOCUMENTS:
        named = set(re.findall(r"`(test_\w+)`", read(document)))
        assert named - defined == set(), document
        places = re.findall(r"`((?:tests|spark|infra|functions)/[\w./-]+)`", read(document))
        assert [place for place in places if "NAME" not in place and not (ROOT / place).exists()] == [], document
