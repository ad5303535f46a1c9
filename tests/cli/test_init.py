"""s3queue init: nothing that is there is overwritten. tests/infra/test_init.py runs what it writes."""

from __future__ import annotations

import json

import pytest

from s3queue.cli.project import FILES


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_new_project_has_every_file_with_its_name(cli, folder):
    ran = cli("init", "shop", "--json")

    assert json.loads(ran.out) == {"name": "shop", "folder": "shop", "written": [*FILES], "kept": []}
    for name in FILES:
        assert "@name@" not in (folder / "shop" / name).read_text()
    assert 'S3Queues(app, "shop")' in (folder / "shop" / "app.py").read_text()


def test_people_are_told_what_comes_next(cli):
    assert "Next: cd shop && pytest; README.md has the rest" in cli("init", "shop").out


def test_into_a_project_that_is_there_nothing_is_overwritten(cli, folder):
    before = {"app.py": "their = 'app'\n", "pyproject.toml": "", "queues/orders.py": "queue = None\n"}
    (folder / "queues").mkdir()
    for name, text in before.items():
        (folder / name).write_text(text)

    ran = cli("init", "shop", "--into", ".", "--json")

    assert set(json.loads(ran.out)["kept"]) == set(before)
    assert {name: (folder / name).read_text() for name in before} == before
    assert (folder / "tests" / "test_orders.py").exists()


def test_whoever_has_a_cdk_app_is_told_the_statement(cli, folder):
    (folder / "app.py").write_text("")

    assert 'S3Queues(app, "shop")' in cli("init", "shop", "--into", ".").err


def test_a_second_time_changes_nothing(cli):
    cli("init", "shop")
    again = json.loads(cli("init", "--into", "shop", "--json").out)

    assert (again["name"], again["written"], again["kept"]) == ("shop", [], [*FILES])


def test_a_link_is_not_written_through(cli, folder):
    (folder / "theirs.md").write_text("theirs")
    (folder / "README.md").symlink_to("theirs.md")
    (folder / "Dockerfile").symlink_to("nowhere")

    cli("init", "shop", "--into", ".")

    assert (folder / "theirs.md").read_text() == "theirs"
    assert not (folder / "nowhere").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give the project a name"),
        (["Shop!"], "cannot be the name of a project"),
        (["../shop"], "cannot be the name of a project"),
        (["taken"], "taken is there already: add to it with --into taken"),
        (["--into", "file"], "that is a file, not a folder"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(cli, folder, arguments, said):
    (folder / "taken").mkdir()
    (folder / "taken" / "something").touch()
    (folder / "file").touch()

    ran = cli("init", *arguments, code=2)

    assert said in ran.err
    assert {one.name for one in folder.iterdir()} == {"taken", "file"}


def test_a_folder_that_cannot_be_written_is_told(cli, folder):
    (folder / "queues").touch()

    ran = cli("init", "shop", "--into", ".", code=2)

    assert "cannot be written" in ran.err


def test_the_folder_gives_a_name_that_a_stack_can_have(cli, folder):
    (folder / "2 My_Shop!").mkdir()

    assert json.loads(cli("init", "--into", "2 My_Shop!", "--json").out)["name"] == "my-shop"
