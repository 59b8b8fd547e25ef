"""References that multiply are refused after so many look-ups, on any machine, with the key and the way out."""

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import Container, OmegaConf

from isaaclab_arena.cli.main import main

JOB = {"name": "a", "arena_env_args": {"environment": "reach"}, "policy_type": "zero_action", "num_episodes": 1}


def doubled(levels: int, reference: str = "${{{0}}}${{{0}}}") -> dict:
    """Return variables of which each names the one before twice."""
    chain = {f"a{level}": reference.format(f"variables.a{level - 1}") for level in range(1, levels + 1)}
    return {"a0": "x", **chain}


@pytest.fixture
def validated(tmp_path, capsys) -> Callable[[dict], dict[str, Any]]:
    def validated(document: dict) -> dict[str, Any]:
        (tmp_path / "jobs.json").write_text(json.dumps(document))
        code = main(["validate", "--json", str(tmp_path / "jobs.json")])
        found = json.loads(capsys.readouterr().out)
        assert code == (2 if found["problems"] else 0)
        return found

    return validated


@pytest.fixture
def refused(validated) -> Callable[[dict], str]:
    def refused(document: dict) -> str:
        (problem,) = validated(document)["problems"]
        assert (Path(problem["file"]).name, problem["job"]) == ("jobs.json", "a")
        assert "write the value out, or name fewer keys" in problem["message"]
        return f"{problem['key']}: {problem['message']}"

    return refused


@pytest.fixture
def jobs(validated) -> Callable[[dict], list[str]]:
    """Return the names of the jobs of a file without a mistake."""

    def jobs(document: dict) -> list[str]:
        (file,) = validated(document)["files"]
        return file["jobs"]

    return jobs


def test_a_few_levels_that_double_are_resolved(jobs):
    assert jobs({"variables": doubled(6), "jobs": [{**JOB, "name": "${variables.a6}"}]}) == ["x" * 64]


@pytest.mark.parametrize("levels", [12, 40])
@pytest.mark.parametrize("reference", ["${{{0}}}${{{0}}}", "${{oc.select:{0}}}${{oc.select:{0}}}", "a${{{0}}}${{{0}}}"])
def test_levels_that_double_are_refused_after_a_thousand_look_ups(refused, levels, reference):
    variables = doubled(levels, reference)
    message = refused({"variables": variables, "jobs": [{**JOB, "policy_type": f"${{variables.a{levels}}}"}]})
    assert message.startswith(f'policy_type: "${{variables.a{levels}}}" makes the interpolations of this file need')
    assert "more than 1100 look-ups of other keys" in message


def test_hundreds_of_levels_are_refused_as_too_deep(validated):
    document = {"variables": doubled(200), "jobs": [{**JOB, "policy_type": "${variables.a200}"}]}
    messages = [problem["message"] for problem in validated(document)["problems"]]
    assert "cannot be resolved: RecursionError" in " ".join(messages)


def test_mappings_that_double_are_refused_too(refused):
    chain = {f"a{level}": dict.fromkeys("xy", f"${{variables.a{level - 1}}}") for level in range(1, 30)}
    document = {"variables": {"a0": 1, **chain}, "jobs": [{**JOB, "policy_config_dict": "${variables.a29}"}]}
    assert "look-ups" in refused(document)


def test_keys_that_double_in_the_names_of_keys_are_refused_too(refused):
    chain: dict = {"x0": "k"}
    for level in range(1, 30):
        chain[f"t{level}"] = {"k": f"${{variables.x{level - 1}}}"}
        chain[f"x{level}"] = f"${{variables.t{level}.${{variables.x{level - 1}}}}}"
    assert "look-ups" in refused({"variables": chain, "jobs": [{**JOB, "policy_type": "${variables.x29}"}]})


def test_a_job_that_names_its_own_keys_doubles_no_further(refused):
    chain = {f"k{level}": f"${{.k{level - 1}}}${{.k{level - 1}}}" for level in range(1, 30)}
    assert "look-ups" in refused({"jobs": [{**JOB, "policy_config_dict": {"k0": "x", **chain}}]})


def test_a_sweep_gives_each_of_its_jobs_a_hundred_look_ups_and_no_more(validated):
    own = {f"k{level}": f"${{.k{level - 1}}}${{.k{level - 1}}}" for level in range(1, 7)}
    sweep = {f"policy_config_dict.s{number}": [0, 1, 2] for number in range(7)}
    document = {"jobs": [{**JOB, "policy_config_dict": {"k0": "x", **own}, "sweep": sweep}]}
    (problem,) = validated(document)["problems"]
    assert re.search(r"need more than \d+ look-ups", problem["message"])


def test_a_long_text_that_is_named_many_times_is_refused_before_it_is_put_together(refused):
    variables = {"long": "x" * 700_000, "all": "${variables.long}" * 100}
    message = refused({"variables": variables, "jobs": [{**JOB, "policy_type": "${variables.all}"}]})
    assert "more than 67108864 characters in the places of references" in message


def test_a_long_list_that_is_named_many_times_is_refused(refused):
    options = {f"o{number}": "${variables.long}" for number in range(101)}
    document = {"variables": {"long": list(range(10_000))}, "jobs": [{**JOB, "policy_config_dict": options}]}
    assert "more than 1000000 values in the places of references" in refused(document)


def test_what_a_job_names_of_its_own_keys_is_counted_too(refused):
    options = {"long": "x" * 700_000} | {f"o{number}": "${.long}" for number in range(101)}
    message = refused({"jobs": [{**JOB, "policy_config_dict": options}]})
    assert "more than 67108864 characters in the places of references" in message


def test_a_text_with_thousands_of_references_is_refused_before_it_is_parsed(refused):
    message = refused({"jobs": [{**JOB, "policy_type": "${variables.a}" * 1101}], "variables": {"a": 1}})
    assert "more than 1100 look-ups" in message
    assert len(message) < 400


def test_many_jobs_may_each_name_what_they_share(validated):
    shared = {"variables": {"length": 3, "args": {"environment": "reach", "num_envs": 2}}}
    block = {**JOB, "num_episodes": "${variables.length}", "arena_env_args": "${variables.args}"}
    own = {"name": "job${.seed}", "language_instruction": "do ${.name}"}
    (file,) = validated({**shared, "jobs": [{**block, **own, "seed": number} for number in range(200)]})["files"]
    assert (file["episodes"], file["environments"]) == (600, ["reach"])
    assert file["jobs"] == [f"job{number}" for number in range(200)]


def test_the_file_that_was_refused_leaves_omegaconf_as_it_was(refused):
    before = (Container._resolve_node_interpolation, Container._evaluate_custom_resolver)
    refused({"variables": doubled(40), "jobs": [{**JOB, "policy_type": "${variables.a40}"}]})
    assert before == (Container._resolve_node_interpolation, Container._evaluate_custom_resolver)


@pytest.mark.filterwarnings("ignore:register_new_resolver")  # its successor is not in every version that serves
def test_what_another_thread_of_the_program_looks_up_meanwhile_is_not_counted(jobs):
    own = OmegaConf.create({"a": 1, "b": "${a}"})
    found: list[int] = []

    def look_up_elsewhere() -> str:
        thread = threading.Thread(target=lambda: found.extend(own.b for _ in range(2000)))
        thread.start()
        thread.join()
        return "named_elsewhere"

    OmegaConf.register_new_resolver("elsewhere", look_up_elsewhere)
    try:
        names = jobs({"jobs": [{**JOB, "name": "${elsewhere:}"}]})
    finally:
        OmegaConf.clear_resolver("elsewhere")
    assert (names, found) == (["named_elsewhere"], [1] * 2000)
