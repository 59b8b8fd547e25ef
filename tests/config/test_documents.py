"""JSON and YAML documents, and their limits."""

import json

import pytest

from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.options import parse_tokens
from isaaclab_arena.errors import ConfigError


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


def test_tags_of_pythons_own_are_passed_over_where_that_is_asked_for_and_nothing_else(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "a: !!python/tuple [1, 2]\nb: &b !!python/name:torch.nn.ELU ''\nc: *b\nd: !!python/object:x.Y {e: no}\n"
    )
    expected = {"a": [1, 2], "b": "torch.nn.ELU", "c": "torch.nn.ELU", "d": {"e": "no"}}
    assert read_document(path, python_tags=True) == expected
    with pytest.raises(ConfigError):
        read_document(path)
    for text in ("- " * 100_000 + "1", "a: !mine 3\n", "a: [1\n", "a: 1\na: 2\n"):
        path.write_text(text)
        with pytest.raises(ConfigError):
            read_document(path, python_tags=True)


def test_a_byte_order_mark_is_passed_over_and_without_a_telling_suffix_both_formats_are_read(read):
    for suffix, text in (("json", '{"a": 1}'), ("yaml", '{"a": 1}'), ("txt", '{"a": 1}'), ("txt", "a: 1")):
        assert read(b"\xef\xbb\xbf" + text.encode(), suffix) == {"a": 1}


# Mistakes: what names the reason, and where it lies.


@pytest.mark.parametrize(
    ("suffix", "content", "message"),
    [
        ("json", '{"a": 1,}', "line 1, column 9: a comma that nothing follows"),
        ("json", '{"a": [1,]}', "a comma that nothing follows"),
        ("json", '{"a": 1} // why', "line 1, column 10: JSON has no comments"),
        ("json", '{"a": 1, "a": 2}', "key 'a' appears twice"),
        ("json", '{"b": {"a": NaN}}', "holds NaN"),
        ("json", '{"a": -Infinity}', "holds -Infinity"),
        ("json", '{"a": 1e999}', "holds inf"),
        ("json", '{"a": ' + "9" * 5000 + "}", "too many digits"),
        ("json", "jobs", "not valid JSON"),
        ("txt", '{"a": 1,}', "not valid JSON"),
        ("yaml", "a: [1\n", "line 2, column 1"),
        ("yaml", "jobs:\n\t- name: a\n", "line 2, column 1: a tab, and YAML is indented with spaces alone"),
        ("yaml", "a: 1\n---\nb: 1\n", "a second document begins, and a file holds one"),
        ("yml", "a: " + "9" * 5000, "not valid YAML"),
        ("yaml", "a: {<<: 1}", "what << names in the mapping that begins at line 1 is no mapping"),
        ("yaml", "a: {<<: [{b: 1}, 2]}", "what << names in the mapping that begins at line 1 is no mapping"),
        (
            "yaml",
            "a: &a {b: 1}\nc:\n  <<: *a\n  <<: *a\n",
            "key '<<' appears twice in the mapping",
        ),
        ("yaml", "a: &a {b: 1, b: 2}\nc: {<<: *a}\n", "key 'b' appears twice in the mapping that begins at line 1"),
        ("yaml", "? [a, b]\n: 1\n", "has a key that is no text in the mapping that begins at line 1"),
        ("yaml", "? {a: b}\n: 1\n", "has a key that is no text"),
        ("yaml", "1: a\n", "has the key 1, which is no text; put it in quotes"),
        ("yaml", "a: !!python/object/apply:os.system [id]\n", "could not determine a constructor for the tag"),
        ("yaml", "a: !!set {b}\n", "which is neither text, number, boolean, list nor mapping"),
        ("yaml", "a: !!binary aGk=\n", "which is neither text, number, boolean, list nor mapping"),
        *(
            ("yaml", f"jobs: {value}\n", "not valid YAML: ")
            for value in ("!!float ''", "!!float _", "!!float 1:30", "!!bool x", "!!bool yes", "!!int ''")
        ),
        ("yaml", "a: *b\n", "found undefined alias"),
        ("yaml", "a: &a [*a]", "unconstructable recursive node"),
        ("yaml", "a: &a {b: *a}", "unconstructable recursive node"),
        ("yaml", "a: &a {<<: *a, c: {d: *a}}", ""),
        ("yaml", "a: .nan\n", "holds nan, which is no finite number"),
        ("yaml", "a: 1e400\n", "holds inf, which is no finite number"),
        ("yaml", "a: 1" + "0" * 5000, "not valid YAML: Exceeds the limit"),
        ("yaml", "a: 1".encode("utf-16"), "UTF-16"),
        ("yaml", "a: 1".encode("utf-32"), "UTF-16"),
        ("yaml", b"a: \xff", "is not UTF-8 (byte 3)"),
        ("yaml", b"abc: \0", "not valid YAML"),
        ("yaml", b"\0", "UTF-16"),
        *(("yaml", nothing, "is empty") for nothing in (b"", b"\xef\xbb\xbf", b" \n")),
    ],
)
def test_a_malformed_file_is_refused_with_its_reason(read, suffix, content, message):
    assert message in refusal(read, content, suffix)


@pytest.mark.parametrize(
    ("path", "message"), [("none.json", "there is no such file"), (".", "is a directory"), ("a\0b", "cannot be read")]
)
def test_what_is_no_file_is_named(path, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        read_document(f"{tmp_path}/{path}")


# What a file may hold, in numbers.


@pytest.mark.parametrize("suffix", ["json", "yaml"])
@pytest.mark.parametrize("text", ["", "1"], ids=["lists", "a text in them"])
def test_sixty_four_levels_are_let_in_and_no_number_of_them_ends_the_program(read, suffix, text):
    assert read("[" * 64 + text + "]" * 64, suffix) is not None
    # The level at which a text lies counts too.
    for too_deep in ("[" * (65 + (not text)) + text + "]" * (65 + (not text)), "[" * 100_000):
        assert "nested deeper than 64 levels" in refusal(read, too_deep, suffix)


@pytest.mark.slow
def test_two_million_values_or_merged_keys_and_sixty_four_mebibytes_are_let_in_and_one_more_is_not(read):
    # The list itself counts, and what an alias stands for counts each time.
    text = f"- &a [{'0, ' * 999}]\n" + "- *a\n" * 1999
    assert len(read(text)) == 2000
    assert "2000000 values" in refusal(read, text + "- 0\n")
    keys = {f"k{index}": index for index in range(1000)}

    def merging(times: int) -> str:
        return f"a: &a {json.dumps(keys)}\nb: {{<<: [{', '.join(['*a'] * times)}]}}\n"

    assert read(merging(2000))["b"] == keys
    assert "merges more than 2000000 keys" in refusal(read, merging(2001))
    assert read(b"[]" + b" " * (2**26 - 2), "json") == []


def test_a_file_of_more_than_sixty_four_mebibytes_is_refused_unread(read):
    assert "64 MiB" in refusal(read, b"[]" + b" " * (2**26 - 1), "json")


def test_aliases_that_multiply_are_refused_by_the_number_of_values(read):
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]
    assert "2000000 values" in refusal(read, "\n".join(lines))


def test_merged_mappings_that_double_are_merged_once(read):
    lines = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}], y{n}: {n}}}" for n in range(1, 50))]
    assert len(read("\n".join(lines))["a49"]) == 50


def test_a_mappings_own_key_goes_before_what_it_merges_and_earlier_ones_before_later_ones(read):
    merged = read("a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {z: 3, <<: [*a, *b], w: 3}\n")["c"]
    # The order is PyYAML's, and decides that of a sweep.
    assert list(merged.items()) == [("y", 1), ("z", 3), ("x", 1), ("w", 3)]
    assert read("a: &a {<<: {b: 1}, c: 2}") == {"a": {"b": 1, "c": 2}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("010", 10), ("0o10", 8), ("0o18", "0o18"), ("0x1F", 31), ("+12", 12), ("-0", 0), ("1_000", "1_000")),
        *(("0b11", "0b11"), ("1:30", "1:30"), ("190:20:30", "190:20:30"), ("yes", "yes"), ("No", "No"), ("on", "on")),
        *(("TRUE", True), ("tRUE", "tRUE"), ("~", None), ("", None), ("nULL", "nULL"), ("1e3", 1000.0), (".5", 0.5)),
        *(("1.", 1.0), ("1e", "1e"), ("2026-01-01", "2026-01-01"), ("=", "="), ("'010'", "010"), ("!!str 010", "010")),
        # A tag before what it fits is followed.
        *(("!!float 3", 3.0), ("!!bool True", True), ("!!timestamp x", "x")),
    ],
)
def test_scalars_are_those_of_yaml_1_2(read, text, value):
    found = read(f"a: {text}\n")["a"]
    assert found == value
    assert type(found) is type(value)


def test_the_largest_number_has_308_noughts(read):
    for suffix, text in (("json", '{{"a": {}}}'), ("yaml", "a: {}")):
        for largest in (10**308, -(10**308)):
            assert read(text.format(largest), suffix) == {"a": largest}
        for larger in (10**308 + 1, -(10**308) - 1):
            assert "too many digits" in refusal(read, text.format(larger), suffix)


def test_a_key_that_appears_twice_among_twenty_thousand_is_found_at_once(read):
    keys = [f'"k{number}": 1' for number in range(20_000)]
    text = "{" + ",\n".join([*keys, '"k19999": 2']) + "}"
    for suffix in ("json", "yaml"):
        assert "key 'k19999' appears twice" in refusal(read, text, suffix)


# Tests of the command-line tokens in old job files.


@pytest.mark.parametrize(
    ("tokens", "positionals", "options"),
    [
        ("", [], {}),
        (
            "--num_envs 4 lift_object --object cube --enable_cameras",
            ["lift_object"],
            {"num_envs": 4, "object": "cube", "enable_cameras": True},
        ),
        ("--enable-cameras lift --object-set a b c", ["lift"], {"enable_cameras": True, "object_set": ["a", "b", "c"]}),
        ("reach --speed=0.5 --offset -0.1 2", ["reach"], {"speed": 0.5, "offset": [-0.1, 2]}),
        ("reach --fast --slow false", ["reach"], {"fast": True, "slow": False}),
        ("--env_spacing 2.5 reach", ["reach"], {"env_spacing": 2.5}),
        ("reach --path=a=b", ["reach"], {"path": "a=b"}),
        ("reach --speed 1e999 nan", ["reach"], {"speed": ["1e999", "nan"]}),
        ("reach --version 1.2.3 --exponent 1e-3", ["reach"], {"version": "1.2.3", "exponent": 0.001}),
    ],
)
def test_tokens_become_positionals_and_typed_options(tokens, positionals, options):
    assert parse_tokens(tokens.split()) == (positionals, options)


@pytest.mark.parametrize(
    ("tokens", "messages"),
    [
        ("--object cube --object can", ["--object is given twice"]),
        ("--num-envs 1 --num_envs 2", ["--num_envs is given twice"]),
        ("-object cube", ["'-object' has one hyphen"]),
        ("-- cube", ["'--' names no option"]),
        ("--num_envs --object cube", ["--num_envs needs a value"]),
        ("-a --b 1 --b 2", ["'-a' has one hyphen", "--b is given twice"]),
    ],
)
def test_malformed_tokens_are_refused(tokens, messages):
    with pytest.raises(ConfigError) as refused:
        parse_tokens(tokens.split())
    for message, problem in zip(messages, refused.value.problems, strict=True):
        assert message in problem.message
