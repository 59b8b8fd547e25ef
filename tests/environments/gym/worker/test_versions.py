"""What an environment runs on is told by package, revision and engine."""

import importlib
import sys

import gymnasium
import mujoco
import pytest

from isaaclab_arena.environments.gym.worker.answers import commit_at, origin, revision, versions_of
from tests.environments.gym.gym_fakes import DrawEnvironment

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Return the directory of a checkout whose package ``checked_out`` was imported."""
    (tmp_path / "checked_out.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    importlib.import_module("checked_out")
    (tmp_path / ".git" / "refs" / "heads").mkdir(parents=True)
    yield tmp_path
    del sys.modules["checked_out"]


def test_packages_are_told_with_their_versions():
    found = versions_of(gymnasium.make("CartPole-v1"))
    assert found["gymnasium"] == gymnasium.__version__
    assert "engine" not in found


def test_the_engine_is_the_one_that_the_environment_uses():
    assert versions_of(gymnasium.make("Ant-v5"))["engine"] == f"mujoco {mujoco.__version__}"
    assert "engine" not in versions_of(gymnasium.make("Pendulum-v1"))


@pytest.mark.parametrize(
    ("head", "file", "line"),
    [
        (COMMIT, None, ""),
        ("ref: refs/heads/main", "refs/heads/main", COMMIT),
        ("ref: refs/heads/main", "packed-refs", f"# pack-refs\n{COMMIT} refs/heads/main"),
    ],
    ids=["detached", "branch", "packed"],
)
def test_a_checkout_is_told_with_its_commit(checkout, head, file, line):
    (checkout / ".git" / "HEAD").write_text(f"{head}\n")
    if file is not None:
        (checkout / ".git" / file).write_text(f"{line}\n")
    assert revision("checked_out") == COMMIT


@pytest.mark.parametrize("place", ["worktree", "submodule"])
def test_a_checkout_whose_repository_is_elsewhere_is_told_with_its_commit(tmp_path, place):
    repository = tmp_path / "repository"
    own = repository / place
    own.mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/main\n")
    if place == "worktree":
        (own / "commondir").write_text("..\n")
    (repository if place == "worktree" else own).joinpath("packed-refs").write_text(f"{COMMIT} refs/heads/main\n")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / ".git").write_text(f"gitdir: ../repository/{place}\n")
    assert commit_at(tmp_path / "here") == COMMIT
    (tmp_path / "here" / ".git").write_text("gitdir: ../gone\n")
    assert commit_at(tmp_path / "here") is None


def test_an_engine_that_is_imported_late_counts_where_nothing_else_needs_one():
    environment = gymnasium.make("Pendulum-v1")
    assert "engine" not in versions_of(environment)
    assert f"mujoco {mujoco.__version__}" in versions_of(environment, alone=True)["engine"].split(", ")


def test_a_branch_without_commits_has_no_revision(checkout):
    (checkout / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    assert revision("checked_out") is None


def test_an_installed_package_has_no_revision_but_that_of_its_installation(tmp_path, monkeypatch):
    assert revision("gymnasium") is None
    info = tmp_path / "from_git-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: from-git\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("from_git\n")
    (info / "direct_url.json").write_text(f'{{"url": "https://x.org/y", "vcs_info": {{"commit_id": "{COMMIT}"}}}}')
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert revision("from_git") == COMMIT


@pytest.mark.parametrize(
    ("file", "content"),
    [("RECORD", "from_wheel/__init__.py,,\n"), ("RECORD", "from_wheel.py,,\n"), ("top_level.txt", "from_wheel\n")],
)
def test_a_package_is_provided_by_what_declares_it_or_installed_its_files(tmp_path, monkeypatch, file, content):
    others = {"neighbour": ("RECORD", "from_wheels/__init__.py,,\n"), "plural": ("top_level.txt", "from_wheels\n")}
    for name, (kind, text) in {"another": (file, content), **others}.items():
        info = tmp_path / f"{name}-2.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.5\n")
        (info / kind).write_text(text)
    (tmp_path / "from_wheel.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    importlib.import_module("from_wheel")
    assert origin("from_wheel")["versions"] == "another 2.5"
    assert origin("os")["versions"] is None
    del sys.modules["from_wheel"]


def test_the_origin_of_a_module_is_its_file_or_what_installed_it():
    assert origin("gymnasium")["versions"] == f"gymnasium {gymnasium.__version__}"
    module = DrawEnvironment.__module__
    assert origin(module)["versions"] is None
    assert str(origin(module)["file"]).endswith("gym_fakes.py")
