"""Where a policy server is, from the options of a job; both policies that ask one are told the same."""

from pathlib import Path
from typing import Any

import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena_gr00t.policy.gr00t_remote_closedloop_policy import Gr00tRemoteClosedloopPolicyArgs
from isaaclab_arena_gr00t.policy.openpi_remote_policy import OpenpiRemotePolicyCfg
from isaaclab_arena_gr00t.remote.protocols import server_address

OPTIONS = [Gr00tRemoteClosedloopPolicyArgs("policy.yaml"), OpenpiRemotePolicyCfg()]


def changed(options: Any, **changes: Any) -> Any:
    return type(options)(**{**vars(options), **changes})


@pytest.mark.parametrize("options", OPTIONS, ids=["gr00t", "openpi"])
@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("remote_port", 0, "must be between 1 and 65535, got 0"),
        ("remote_port", 70000, "must be between 1 and 65535, got 70000"),
        ("remote_host", "", "must be the name of a machine, got ''"),
        ("remote_host", "two words", "must be the name of a machine, got 'two words'"),
        ("timeout_s", 0.0, "must be more than 0 s, got 0"),
        ("wait_for_server_s", float("inf"), "must be more than 0 s, got inf"),
        ("remote_api_token", "sesame", "is refused, since a run writes the options of its jobs into its output"),
        ("remote_api_token_file", "none.txt", "cannot read 'none.txt': No such file or directory"),
        (
            "remote_api_token_file",
            "empty.txt",
            "'empty.txt' must hold the server's token on one line, it holds nothing",
        ),
        ("remote_api_token_file", "two.txt", "on one line, it holds several lines"),
        ("remote_api_token_file", "picture.png", "'picture.png' is no text"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_its_key(tmp_path, monkeypatch, options, key, value, message):
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("\n")
    Path("two.txt").write_text("open\nsesame\n")
    Path("picture.png").write_bytes(b"\x89PNG\xff")
    with pytest.raises(ConfigError) as refused:
        server_address(changed(options, **{key: value}))
    [problem] = refused.value.problems
    assert problem.key == key
    assert message in problem.message
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize("options", OPTIONS, ids=["gr00t", "openpi"])
def test_the_token_comes_from_its_file_and_is_not_shown(tmp_path, options):
    file = tmp_path / "token"
    file.write_text("sesame\n")
    address = server_address(changed(options, remote_api_token_file=str(file)))
    assert address.api_token == "sesame"
    assert "sesame" not in repr(address)
