"""References that multiply are refused after so many look-ups, on any machine, with the key and the way out."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import Container, OmegaConf

from isaaclab_arena.cli.main import main

JOB = {"name": "a", "arena_env_args": {"environment": "reach"}, "policy_type": "zero_action", "num_episodes": 1}


def chain(levels: int, reference: str = "${{{0}}}${{{0}}}", within: str = "variables.") -> dict[str, Any]:
    """Return keys of which each names the one before twice."""
    return {"a0": "x"} | {f"a{n}": reference.format(f"{within}a{n - 1}") for n in range(1, levels + 1)}


def document(variables: dict, **job: Any) -> dict[str, Any]:
    return {"variables": variables, "jobs": [{**JOB, **job}]}


@pytest.fixture
def validated(tmp_path, capsys) -> Callable[[dict], dict[str, Any]]:
    def validated(document: dict) -> dict[str, Any]:
        (tmp_path / "jobs.json").write_text(json.dumps(document))
        code = main(["validate", "--json", str(tmp_path / "jobs.json")])
        found = json.loads(capsys.readouterr().out)
        assert code == (2 if found["problems"] else 0)
        return found

    return validated


MAPPINGS = {"a0": 1} | {f"a{n}": dict.fromkeys("xy", f"${{variables.a{n - 1}}}") for n in range(1, 30)}
NAMES_OF_KEYS = {"x0": "k"}
for level in range(1, 30):
    NAMES_OF_KEYS |= {f"t{level}": {"k": f"${{variables.x{level - 1}}}"}}
    NAMES_OF_KEYS |= {f"x{level}": f"${{variables.t{level}.${{variables.x{level - 1}}}}}"}
LONG = "x" * 700_000

LOOK_UPS = "need more than 1100 look-ups of other keys"
BOMBS = {
    "twelve levels": (document(chain(12), policy_type="${variables.a12}"), LOOK_UPS),
    "forty levels": (document(chain(40), policy_type="${variables.a40}"), LOOK_UPS),
    "selections": (document(chain(12, "${{oc.select:{0}}}" * 2), policy_type="${variables.a12}"), LOOK_UPS),
    "parts of a text": (document(chain(12, "a" + "${{{0}}}" * 2), policy_type="${variables.a12}"), LOOK_UPS),
    "mappings": (document(MAPPINGS, policy_config_dict="${variables.a29}"), LOOK_UPS),
    "names of keys": (document(NAMES_OF_KEYS, policy_type="${variables.x29}"), LOOK_UPS),
    "keys of the job itself": (document({}, policy_config_dict=chain(30, within=".")), LOOK_UPS),
    "a text with thousands": (document({"a": 1}, policy_type="${variables.a}" * 1101), LOOK_UPS),
    "a long text": (
        document({"long": LONG, "all": "${variables.long}" * 100}, policy_type="${variables.all}"),
        "more than 67108864 characters in the places of references",
    ),
    "a long text of the job itself": (
        document({}, policy_config_dict={"long": LONG} | {f"o{n}": "${.long}" for n in range(101)}),
        "more than 67108864 characters in the places of references",
    ),
    "a long list": (
        document({"long": [*range(10_000)]}, policy_config_dict={f"o{n}": "${variables.long}" for n in range(101)}),
        "more than 1000000 values in the places of references",
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_references_that_multiply_are_refused_with_the_key_and_the_way_out(validated, bomb):
    bombs, words = BOMBS[bomb]
    before = (Container._resolve_node_interpolation, Container._evaluate_custom_resolver)
    (problem,) = validated(bombs)["problems"]
    assert (Path(problem["file"]).name, problem["job"]) == ("jobs.json", "a")
    assert problem["key"].partition(".")[0] in ("policy_type", "policy_config_dict")
    assert words in problem["message"]
    assert "write the value out, or name fewer keys" in problem["message"]
    assert len(problem["message"]) < 400
    assert before == (Container._resolve_node_interpolation, Container._evaluate_custom_resolver)


def test_hundreds_of_levels_are_refused_as_too_deep(validated):
    problems = validated(document(chain(200), policy_type="${variables.a200}"))["problems"]
    assert any("cannot be resolved: RecursionError" in problem["message"] for problem in problems)


def test_a_sweep_gives_each_of_its_jobs_a_hundred_look_ups_and_no_more(validated):
    sweep = {f"policy_config_dict.s{number}": [0, 1, 2] for number in range(7)}
    (problem,) = validated(document({}, policy_config_dict=chain(6, within="."), sweep=sweep))["problems"]
    assert "look-ups" in problem["message"]


def test_a_few_levels_that_double_and_many_jobs_that_name_what_they_share_are_resolved(validated):
    shared = {**chain(6), "length": 3, "args": {"environment": "reach", "num_envs": 2}}
    block = {**JOB, "num_episodes": "${variables.length}", "arena_env_args": "${variables.args}"}
    own = {"name": "job${.seed}", "language_instruction": "do ${.name} ${variables.a6}"}
    jobs = [{**block, **own, "seed": number} for number in range(20)]
    (file,) = validated({"variables": shared, "jobs": jobs})["files"]
    assert (file["episodes"], file["environments"]) == (60, ["reach"])
    assert file["jobs"] == [f"job{number}" for number in range(20)]


@pytest.mark.filterwarnings("ignore:register_new_resolver")  # its successor is not in every version that serves
def test_what_another_thread_of_the_program_looks_up_meanwhile_is_not_counted(validated):
    own = OmegaConf.create({"a": 1, "b": "${a}"})
    found: list[int] = []

    def look_up_elsewhere() -> str:
        thread = threading.Thread(target=lambda: found.extend(own.b for _ in range(2000)))
        thread.start()
        thread.join()
        return "named_elsewhere"

    OmegaConf.register_new_resolver("elsewhere", look_up_elsewhere)
    try:
        (file,) = validated(document({}, name="${elsewhere:}"))["files"]
    finally:
        OmegaConf.clear_resolver("elsewhere")
    assert (file["jobs"], found) == (["named_elsewhere"], [1] * 2000)
