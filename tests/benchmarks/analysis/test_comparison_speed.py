from benchmarks.analysis.comparison_speed import compare, write_runs


def test_two_runs_of_the_same_conditions_are_compared_pair_by_pair(tmp_path):
    runs = write_runs(tmp_path, num_jobs=2, num_episodes=12)
    took = compare(*runs, num_pairs=24)
    assert took.wall_s > 0.0
    assert (runs[1] / "comparison.json").is_file()
