"""report.html of 200,000 episodes in a browser: two runs of 10 jobs of 10,000, two of which are pairs."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.runs.merge_speed import write_run
from isaaclab_arena.cli.main import main
from tests.browser.chromium import resident_bytes
from tests.report.reading import write_films, write_recording

JOBS, EPISODES, FILMED = 20, 10_000, 120
FILTERS = (
    ("outcome", "1"),
    ("job", "3"),
    ("text", "bin"),
    ("text", "#77"),
    ("order", "long"),
    ("order", "plan"),
    ("pair", "0"),
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("large")
    runs = [directory / "old", directory / "new"]
    for policy_seed, run in enumerate(runs):
        run.mkdir()
        write_run(run, num_jobs=JOBS // 2, num_episodes=JOBS // 2 * EPISODES, policy_seed=policy_seed)
        assert main(["merge", str(run)]) == 0
    # More filmed and recorded episodes than have room for their traces.
    generator = np.random.default_rng(0)
    shapes = {"actions": (400, 8), "rewards": (400,), "obs/robot_joint_pos": (400, 7), "obs/eef_pos": (400, 3)}
    write_films(runs[0], "job00000", range(FILMED))
    for episode in range(FILMED):
        arrays = {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        write_recording(runs[0], "job00000", episode, arrays)
    assert main(["report", *map(str, runs)]) == 0
    return runs[0] / "report.html"


def test_it_is_small_and_takes_little_memory(page, chromium, made):
    assert made.stat().st_size <= 6_000_000
    page.open(made)
    assert 40 < page.run("JSON.parse(document.getElementById('data').textContent).traces.length") < FILMED
    assert page.heap_bytes <= 300_000_000
    assert resident_bytes(chromium) <= 300_000_000
    assert page.run("document.getElementById('count').textContent") == "200,000 episodes"


@pytest.mark.parametrize(("field", "value"), FILTERS)
def test_a_filter_draws_only_the_episodes_in_sight(page, made, field, value):
    """The number of elements decides how soon the page answers, and no number of episodes adds to it."""
    page.open(made)
    script = f"""(async () => {{
        const field = document.getElementById('filter').elements.{field};
        let most = 0;
        for (const value of ['', '{value}', '', '{value}']) {{
            field.value = value;
            field.dispatchEvent(new Event('input', {{bubbles: true}}));
            await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
            most = Math.max(most, document.getElementById('sheet').getElementsByTagName('*').length);
        }}
        return most;
    }})()"""
    assert 0 < page.run(script) <= 1_000
