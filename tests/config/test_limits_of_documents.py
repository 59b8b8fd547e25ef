"""The limits of JSON and YAML files, in numbers: one below is let in, one above is not."""

import json

import pytest

from isaaclab_arena import ConfigError
from isaaclab_arena.config.documents import read_document


@pytest.fixture
def read(tmp_path):
    def read(text: str | bytes, suffix: str = "yaml") -> object:
        path = tmp_path / f"file.{suffix}"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_document(path)

    return read


def refusal(read, text: str | bytes, suffix: str = "yaml") -> str:
    with pytest.raises(ConfigError) as caught:
        read(text, suffix)
    (problem,) = caught.value.problems
    assert str(problem.file).endswith(f"file.{suffix}")
    return problem.message


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_sixty_four_levels_are_let_in(read, suffix):
    assert read("[" * 64 + "]" * 64, suffix) is not None
    assert "nested deeper than 64 levels" in refusal(read, "[" * 66 + "]" * 66, suffix)


def test_the_level_at_which_a_text_lies_counts_too(read):
    assert read("[" * 64 + "1" + "]" * 64, "json") is not None
    assert "nested deeper than 64 levels" in refusal(read, "[" * 65 + "1" + "]" * 65, "json")
    assert "nested deeper than 64 levels" in refusal(read, "[" * 65 + "1" + "]" * 65, "yaml")


def test_a_hundred_thousand_levels_are_refused_and_end_nothing(read):
    for suffix in ("json", "yaml"):
        assert "nested deeper than 64 levels" in refusal(read, "[" * 100_000, suffix)


def test_two_million_values_are_let_in_and_one_more_is_not(read):
    assert len(read(json.dumps([0] * 2_000_000), "json")) == 2_000_000
    assert refusal(read, json.dumps([0] * 2_000_001), "json") == "holds more than 2000000 values"


def test_sixty_four_mebibytes_are_let_in_and_a_byte_more_is_not(read):
    assert read(b"[]" + b" " * (2**26 - 2), "json") == []
    assert refusal(read, b"[]" + b" " * (2**26 - 1), "json") == "is larger than 64 MiB"


def test_aliases_that_multiply_are_refused_by_the_number_of_values(read):
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]
    assert refusal(read, "\n".join(lines)) == "holds more than 2000000 values"


def test_an_alias_of_what_holds_it_is_refused(read):
    for text in ("a: &a [*a]", "a: &a {b: *a}"):
        assert "unconstructable recursive node" in refusal(read, text)


def test_merged_mappings_that_double_are_merged_once(read):
    lines = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}], y{n}: {n}}}" for n in range(1, 50))]
    document = read("\n".join(lines))
    assert len(document["a49"]) == 50


def test_two_million_merged_keys_are_let_in_and_more_are_not(read):
    keys = {f"k{index}": index for index in range(1000)}

    def merging(times: int) -> str:
        return f"a: &a {json.dumps(keys)}\nb: {{<<: [{', '.join(['*a'] * times)}]}}\n"

    assert read(merging(2000))["b"] == keys
    assert refusal(read, merging(2001)) == "merges more than 2000000 keys into mappings (<<)"


def test_a_mappings_own_key_goes_before_what_it_merges_and_earlier_ones_before_later_ones(read):
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {z: 3, <<: [*a, *b], w: 3}\n"
    merged = read(text)["c"]
    assert merged == {"x": 1, "y": 1, "z": 3, "w": 3}
    assert list(merged) == ["y", "z", "x", "w"]  # the order of PyYAML, which decides that of a sweep


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {<<: 1}", "what << names in the mapping that begins at line 1 is no mapping"),
        ("a: {<<: [{b: 1}, 2]}", "what << names in the mapping that begins at line 1 is no mapping"),
        ("a: &a {b: 1}\nc:\n  <<: *a\n  <<: *a\n", "key '<<' appears twice in the mapping that begins at line 3"),
        ("a: &a {b: 1, b: 2}\nc: {<<: *a}\n", "key 'b' appears twice in the mapping that begins at line 1"),
        ("? [a, b]\n: 1\n", "has a key that is no text in the mapping that begins at line 1"),
        ("? {a: b}\n: 1\n", "has a key that is no text"),
        ("1: a\n", "has the key 1, which is no text; put it in quotes"),
        ("a: !!python/object/apply:os.system [id]\n", "could not determine a constructor for the tag"),
        ("a: !!set {b}\n", "which is neither text, number, boolean, list nor mapping"),
        ("a: !!binary aGk=\n", "which is neither text, number, boolean, list nor mapping"),
        ("a: *b\n", "found undefined alias"),
        ("a: 1\n---\nb: 2\n", "a second document begins"),
        ("a: .nan\n", "holds nan, which is no finite number"),
        ("a: 1e400\n", "holds inf, which is no finite number"),
        ("a: 1" + "0" * 309, "holds a number with too many digits"),
        ("a: 1" + "0" * 5000, "not valid YAML: Exceeds the limit"),
    ],
)
def test_what_yaml_may_not_hold_is_told(read, text, message):
    assert message in refusal(read, text)


def test_a_mapping_that_merges_itself_ends(read):
    assert read("a: &a {<<: {b: 1}, c: 2}") == {"a": {"b": 1, "c": 2}}
    assert refusal(read, "a: &a {<<: *a, c: {d: *a}}")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10),
        ("0o10", 8),
        ("0o18", "0o18"),
        ("0x1F", 31),
        ("+12", 12),
        ("-0", 0),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("1:30", "1:30"),
        ("190:20:30", "190:20:30"),
        ("yes", "yes"),
        ("No", "No"),
        ("on", "on"),
        ("TRUE", True),
        ("tRUE", "tRUE"),
        ("~", None),
        ("", None),
        ("nULL", "nULL"),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("1e", "1e"),
        ("2026-01-01", "2026-01-01"),
        ("=", "="),
        ("'010'", "010"),
        ("!!str 010", "010"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(read, text, value):
    found = read(f"a: {text}\n")["a"]
    assert found == value
    assert type(found) is type(value)


def test_the_largest_number_has_308_noughts(read):
    for suffix, text in (("json", '{{"a": {}}}'), ("yaml", "a: {}")):
        assert read(text.format(10**308), suffix) == {"a": 10**308}
        assert read(text.format(-(10**308)), suffix) == {"a": -(10**308)}
        assert "too many digits" in refusal(read, text.format(10**308 + 1), suffix)
        assert "too many digits" in refusal(read, text.format(-(10**308) - 1), suffix)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("a: 1".encode("utf-16"), "UTF-16"),
        ("a: 1".encode("utf-32"), "UTF-16"),
        (b"\xff\xfea", "UTF-16"),
        (b"a: \xff", "is not UTF-8 (byte 3)"),
        (b"abc: \0", "not valid YAML"),
        (b"\0", "UTF-16"),
        (b"", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b" \n", "is empty"),
    ],
)
def test_what_is_no_utf_8_is_told(read, data, message):
    assert message in refusal(read, data)


def test_a_byte_order_mark_is_passed_over(read):
    for suffix in ("json", "yaml"):
        assert read(b'\xef\xbb\xbf{"a": 1}', suffix) == {"a": 1}


def test_a_key_that_appears_twice_among_a_hundred_thousand_is_found_at_once(read):
    keys = [f'"k{number}": 1' for number in range(100_000)]
    text = "{" + ",\n".join([*keys, '"k99999": 2']) + "}"
    for suffix in ("json", "yaml"):
        assert "key 'k99999' appears twice" in refusal(read, text, suffix)
