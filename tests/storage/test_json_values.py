import json
from dataclasses import dataclass

import numpy as np
import pytest

from isaaclab_arena.storage.disk import json_line, json_text
from tests.security.test_names import WICKED, steers

NESTED = {
    "name": 'a "quoted", line\nand another, [of] {brackets}',
    "empty": {"list": [], "dict": {}},
    "jobs": [{"a": 1, "b": None, "c": 0.1}, {"a": [1, [2.5e-7, True]], "ö": {}}],
    "numbers": [1, 2, 3],
    "": [[], [[]]],
}


@dataclass(frozen=True)
class Pair:
    left: object
    right: object


@pytest.mark.parametrize("value", [NESTED, [], {}, [NESTED, []], 3, "text", None])
def test_indented_text_is_what_pythons_own_encoder_writes(value):
    assert json_text(value) == json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def test_what_json_does_not_know_becomes_what_it_does():
    value = Pair(left=(np.float32(0.5), float("nan"), {1: np.arange(2)}), right=Pair(left="x", right=float("inf")))
    expected = {"left": [0.5, None, {"1": [0, 1]}], "right": {"left": "x", "right": None}}
    assert json.loads(json_line(value)) == expected
    assert json.loads(json_text(value)) == expected


def test_a_line_of_plain_values_is_what_pythons_own_encoder_writes():
    assert json_line(NESTED) == json.dumps(NESTED, ensure_ascii=False)


@pytest.mark.parametrize("text", WICKED)
def test_json_says_the_same_and_steers_nothing(text):
    for written in (json_line({text: [text]}), json_text({text: [text]}).rstrip("\n")):
        assert not steers(written)
        if not text.endswith("\udcff"):
            assert json.loads(written) == {text: [text]}
        assert json.loads(written.encode())
