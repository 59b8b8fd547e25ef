"""A limit on the size of files (``ulimit -f``, RLIMIT_FSIZE) is a full disk: the run stops and keeps what it has."""

import subprocess
import sys
from pathlib import Path

from tests.end_to_end.launching import job, write_jobs

LIMITED = """
import resource, sys
from isaaclab_arena.evaluation import eval_runner
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(eval_runner.main(["--eval_jobs_config", "jobs.json", "--output_dir", "out", *sys.argv[2:]]))
"""


def test_a_run_under_the_limit_stops_and_keeps_what_has_finished(tmp_path):
    write_jobs(tmp_path / "jobs.json", [job("reach", "random_action", 1, name=name) for name in ("first", "second")])
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "20000"], capture_output=True, text=True, cwd=tmp_path, check=False, timeout=240
    )
    assert done.returncode == 1
    assert "File too large" in done.stderr + done.stdout
    # The second job would have met the limit too, and was not begun.
    assert not list(Path(tmp_path / "out" / "second").glob("episode_results*"))
    assert "Traceback" not in done.stderr
