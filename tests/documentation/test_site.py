"""The site of docs/ has every page, and pages that programs write have everything that the programs have."""

import re
import subprocess

import pytest
import yaml

from documentation.command_line import MODULES, commands, help_of, options_of, page
from documentation.staging import DOCS, generated, linked_outside, place_of, stage, with_links_of_the_site
from isaaclab_arena.cli.main import main
from tests.end_to_end.launching import ROOT

SETTINGS = ROOT / "documentation" / "mkdocs.yml"
MKDOCS = ROOT / ".venv-docs" / "bin" / "mkdocs"
# What a browser would load without being asked: scripts, styles, fonts, pictures, frames.
_LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)")


def in_navigation(entry: object) -> set[str]:
    """Return the pages that a part of the navigation names."""
    if isinstance(entry, dict | list):
        parts = entry.values() if isinstance(entry, dict) else entry
        return set().union(*map(in_navigation, parts))
    return {str(entry)}


def test_the_navigation_has_every_page_and_groups_those_of_how_to_as_their_own_page_does():
    navigation = yaml.safe_load(re.sub(r"!!python\S+", "", SETTINGS.read_text()))["nav"]
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} | set(generated())
    assert in_navigation(navigation) == {name for name in written if not name.startswith("reference/task_catalog/")}
    (how_to,) = [part["How-to"] for part in navigation if "How-to" in part]
    groups = {
        name: [(title, page.removeprefix("how_to/")) for each in pages for title, page in each.items()]
        for group in how_to if isinstance(group, dict)
        for name, pages in group.items()
    }  # fmt: skip
    assert groups == {
        section.partition("\n")[0]: re.findall(r"^- \[(.+?)\]\((\w+\.md)\)", section, re.MULTILINE)
        for section in (DOCS / "how_to" / "index.md").read_text().split("\n## ")[1:]
    }
    assert all(len(pages) <= 6 for pages in groups.values())


@pytest.mark.parametrize("command", ["run", "policy", "train"])
def test_the_page_of_commands_has_every_option_that_a_shell_completes(command, capsys):
    named = " ".join(option.name for option in options_of(help_of(command)))
    assert main(["completion", "fish"]) == 0
    completed = re.findall(rf"seen_subcommand_from {command}' -l (\w+)", capsys.readouterr().out)
    assert {"device", "num_envs", "seed"} <= set(completed)
    # After the name of an environment, a line may go on with options that many of these have.
    for name in set(completed) - {"help", "embodiment", "object"}:
        assert re.search(rf"--(no_)?{name}\b", named), name


def test_every_command_has_a_section_and_every_option_says_what_it_does():
    headings = re.findall(r"^## (.+)$", page(), re.MULTILINE)
    assert headings == [f"isaaclab-arena {name}" for name in commands()] + [f"python -m {name}" for name in MODULES]
    assert len(headings) > 10
    assert "| `--num_envs INT` |" in page()
    for command in commands():
        for option in options_of(help_of(command)):
            assert option.says, f"{command} {option.name}"
            assert "│" not in option.says + option.name + option.default


def test_links_to_other_files_of_the_project_lead_to_copies_in_the_site():
    source = DOCS / "how_to" / "training.md"
    text = "[models](../../models) [one](tasks.md) [its card](../../models/reach/README.md#results) [web](https://a.b)"
    assert [path.name for path in linked_outside(text, source)] == ["models", "README.md"]
    assert with_links_of_the_site(text, source) == (
        "[models](../project/models.md) [one](tasks.md) [its card](../project/models/reach/read_me.md#results) "
        "[web](https://a.b)"
    )
    assert place_of(ROOT / "jobs" / "quickstart.json").as_posix() == "project/jobs/quickstart.json.md"


@pytest.mark.skipif(not MKDOCS.exists(), reason="make docs has not been run")
def test_the_site_is_read_without_a_network(tmp_path):
    pages, site = tmp_path / "docs", tmp_path / "site"
    (tmp_path / "settings").mkdir()
    settings = SETTINGS.read_text().replace("../build/docs", str(pages)).replace("../site", str(site))
    (tmp_path / "settings" / "mkdocs.yml").write_text(settings.replace("paths: [..]", f"paths: [{ROOT}]"))
    stage(pages)
    line = [MKDOCS, "build", "--strict", "--quiet", "--config-file", tmp_path / "settings" / "mkdocs.yml"]
    built = subprocess.run(line, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    texts = [path.read_text() for path in site.rglob("*.html")]
    assert len(texts) > 60
    assert [url for text in texts for url in _LOADED.findall(text)] == []
    styles = "\n".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.search(r"url\([\"']?(https?:)?//|@import", styles)
