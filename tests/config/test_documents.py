"""Tests of reading JSON and YAML strictly."""

from pathlib import Path

import pytest
import yaml

from isaaclab_arena.config import documents
from isaaclab_arena.config.documents import read_document
from isaaclab_arena.errors import ConfigError


def write(directory: Path, name: str, content: str | bytes) -> Path:
    path = directory / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "", "empty"),
        ("a.yaml", "  \n", "empty"),
        ("a.json", '{"a": 1,}', r"line 1, column \d+: a comma that nothing follows"),
        ("a.json", '{"a": [1,]}', "a comma that nothing follows"),
        ("a.json", '{"a": 1} // why', "line 1, column 10: JSON has no comments"),
        ("a.json", '{"a": 1, "a": 2}', "key 'a' appears twice"),
        ("a.json", '{"b": {"a": NaN}}', "holds NaN"),
        ("a.json", '{"a": -Infinity}', "holds -Infinity"),
        ("a.json", '{"a": 1e999}', "holds inf"),
        ("a.json", '{"a": ' + "9" * 5000 + "}", "too many digits"),
        ("a.json", "[" * 100_000, "nested deeper than 64"),
        ("a.json", "[" * 70 + "]" * 70, "nested deeper than 64"),
        ("a.json", "jobs", "not valid JSON"),
        ("a.json", '{"a": 1}'.encode("utf-16"), "is UTF-16"),
        ("a.json", '{"a": 1}'.encode("utf-16-le"), "is UTF-16"),
        ("a.json", b'{"a": "\xff"}', r"is not UTF-8 \(byte 7\)"),
        ("a.yaml", "a: 1\na: 2\n", "key 'a' appears twice"),
        ("a.yaml", "a: .nan\n", "holds nan"),
        ("a.yaml", "1: a\n", "key 1, which is no text"),
        ("a.yaml", "a: [1\n", "line 2, column 1"),
        ("a.yaml", "- " * 100_000 + "1", "nested deeper than 64"),
        ("a.yaml", "a: &a [*a]\n", "recursive"),
        ("a.yaml", "!!python/object/apply:os.getcwd []\n", "not valid YAML"),
        ("a.yaml", "jobs:\n\t- name: a\n", "line 2, column 1: a tab, and YAML is indented with spaces alone"),
        ("a.yaml", "a: 1\n---\nb: 1\n", "a second document begins, and a file holds one"),
        ("a.yml", "a: " + "9" * 5000, "not valid YAML"),
    ],
)
def test_a_malformed_file_is_refused_with_its_reason(tmp_path, name, content, message):
    path = write(tmp_path, name, content)

    with pytest.raises(ConfigError, match=message) as refused:
        read_document(path)
    assert refused.value.problems[0].file == str(path)


def test_a_missing_file_and_a_directory_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.json: there is no such file"):
        read_document(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="is a directory"):
        read_document(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_document("a\0b")


def test_an_alias_bomb_is_refused_before_it_is_unfolded(tmp_path):
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(ConfigError, match="more than 2000000 values"):
        read_document(write(tmp_path, "a.yaml", "\n".join(lines)))


def test_a_byte_order_mark_is_accepted(tmp_path):
    assert read_document(write(tmp_path, "a.json", b'\xef\xbb\xbf{"a": 1}')) == {"a": 1}


def test_yaml_reads_scalars_as_its_core_schema_says(tmp_path):
    text = "a: no\nb: 010\nc: 1e3\nd: 2020-01-01\ne:\nf: 1_0\ng: 0x1f\nh: True\ni: 1:30\nj: 0.5\n"

    assert read_document(write(tmp_path, "a.yaml", text)) == {
        "a": "no", "b": 10, "c": 1000.0, "d": "2020-01-01", "e": None,
        "f": "1_0", "g": 31, "h": True, "i": "1:30", "j": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(("content", "expected"), [('{"a": [1]}', {"a": [1]}), ("a: [1]", {"a": [1]})])
def test_without_a_telling_suffix_both_formats_are_read(tmp_path, content, expected):
    assert read_document(write(tmp_path, "jobs.txt", content)) == expected


def test_without_a_telling_suffix_a_brace_means_json(tmp_path):
    with pytest.raises(ConfigError, match="not valid JSON"):
        read_document(write(tmp_path, "jobs", '{"a": 1,}'))


def test_tags_of_pythons_own_are_passed_over_where_that_is_asked_for(tmp_path):
    text = "a: !!python/tuple [1, 2]\nb: &b !!python/name:torch.nn.ELU ''\nc: *b\nd: !!python/object:x.Y {e: no}\n"
    path = write(tmp_path, "a.yaml", text)
    expected = {"a": [1, 2], "b": "torch.nn.ELU", "c": "torch.nn.ELU", "d": {"e": "no"}}
    assert read_document(path, python_tags=True) == expected
    with pytest.raises(ConfigError, match="not valid YAML"):
        read_document(path)


@pytest.mark.parametrize("text", ["- " * 100_000 + "1", "a: !mine 3\n", "a: [1\n", "a: 1\na: 2\n"])
def test_nothing_else_is_let_pass_with_them(tmp_path, text):
    with pytest.raises(ConfigError):
        read_document(write(tmp_path, "a.yaml", text), python_tags=True)


@pytest.mark.parametrize("value", ["!!float ''", "!!float _", "!!float 1:30", "!!bool x", "!!bool yes", "!!int ''"])
def test_a_tag_before_what_it_does_not_fit_is_refused(tmp_path, value):
    (tmp_path / "a.yaml").write_text(f"jobs: {value}\n")
    with pytest.raises(ConfigError, match=r"a\.yaml: not valid YAML: "):
        read_document(tmp_path / "a.yaml")


@pytest.mark.parametrize(("value", "read"), [("!!float 3", 3.0), ("!!bool True", True), ("!!timestamp x", "x")])
def test_a_tag_before_what_it_fits_is_followed(tmp_path, value, read):
    (tmp_path / "a.yaml").write_text(f"jobs: {value}\n")
    assert read_document(tmp_path / "a.yaml") == {"jobs": read}


def test_yaml_is_read_by_a_loader_that_derives_from_the_safe_one():
    assert issubclass(documents._CoreLoader, yaml.CSafeLoader)
