"""The directory of a run, where the name that is given leads up."""

from isaaclab_arena.storage.disk import make_output_directory


def test_a_way_up_in_the_name_of_a_directory_makes_no_directory_on_the_way(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = make_output_directory(output_dir="a/nodir/../../b", output_base_dir="")
    assert made == tmp_path / "b"
    assert make_output_directory(output_dir=None, output_base_dir="c/../d").parent == tmp_path / "d"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "d"]


def test_a_way_up_through_a_link_leads_where_the_link_leads(tmp_path):
    (tmp_path / "far" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "inner")
    made = make_output_directory(output_dir=f"{tmp_path}/link/../out", output_base_dir="")
    assert made == tmp_path / "far" / "out"
