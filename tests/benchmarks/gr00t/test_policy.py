"""The benchmark of GR00T policies measures all that it says."""

import pytest

from benchmarks.gr00t.policy import Options, main
from tests.benchmarks.gr00t.tables import cells


@pytest.mark.slow
def test_one_command_measures_everything_and_says_how(tmp_path, model_path, capsys):
    output = tmp_path / "results.md"
    options = Options(
        model_path=model_path,
        devices=("cpu",),
        batch_sizes=(1,),
        num_envs=(2,),
        counted_num_envs=(2,),
        repetitions=1,
        starts=1,
        runs=1,
        counted_episodes=2,
        compiled_on=(),
        output=output,
    )
    main(options)
    text = output.read_text()
    assert f"python -m benchmarks.gr00t.policy --model_path {model_path} " in text
    assert f"The model is the checkpoint `{model_path}`" in text
    assert text.count("\n## ") == 6
    tables = [[cells(line) for line in part.splitlines() if line.startswith("|")] for part in text.split("\n## ")[1:]]
    assert all(len(line) == len(table[0]) for table in tables for line in table)
    assert [len(table) - 2 for table in tables] == [2, 2, 1, 2, 1, 1]
    shares = [sum(float(cell.strip("% ")) for cell in line if cell.endswith("%")) for line in tables[3][2:]]
    assert shares == pytest.approx([100, 100], abs=3)
    assert float(tables[4][2][2]) > float(tables[4][2][3]) > 100
    assert "Memory of a rank" in capsys.readouterr().out
