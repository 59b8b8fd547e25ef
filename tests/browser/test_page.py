"""report.html in a browser without a network: of runs that ended well, badly, or not at all."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.evaluation.eval_runner import main as evaluate
from isaaclab_arena.interfaces.episode import Outcome
from tests.analysis.recorded_runs import write_run as write_comparable
from tests.browser.runs import HOSTILE_NAMES, HOSTILE_TEXTS, write_run
from tests.end_to_end.launching import write_jobs

SMALL = {"num_envs": 2, "viewport_width": 160, "viewport_height": 120}
JOBS = [
    {
        "name": "scripted",
        "arena_env_args": {"environment": "reach", **SMALL},
        "policy_type": "scripted",
        "num_episodes": 3,
    },
    {
        "name": "random",
        "arena_env_args": {"environment": "reach", **SMALL},
        "policy_type": "random_action",
        "num_episodes": 3,
    },
]
REACHABLE = "a[href], button, input, select, textarea, summary, [tabindex='0']"
FILMED = "[...document.querySelectorAll('.tile[data-film=yes]')]"
FILM = "document.querySelector('dialog[open] video')"
IS_SHOWN = "each => each.checkVisibility({checkVisibilityCSS: true}) && !each.disabled && !each.closest('[inert]')"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run with films of every episode, and its page."""
    directory = tmp_path_factory.mktemp("shown")
    jobs = write_jobs(directory / "jobs.json", JOBS)
    assert (
        evaluate(["--eval_jobs_config", str(jobs), "--output_dir", str(directory / "out"), "--record_viewport_video"])
        == 0
    )
    return directory / "out"


def page_of(*runs: Path, output: Path) -> Path:
    assert main(["report", *map(str, runs), "--output", str(output)]) == 0
    return output


@pytest.fixture(scope="module")
def report(run, tmp_path_factory) -> Path:
    """The page alone, as it is after it was mailed."""
    page_of(run, output=run / "report.html")
    alone = tmp_path_factory.mktemp("mailed") / "report.html"
    shutil.copy(run / "report.html", alone)
    return alone


def is_quiet(page) -> None:
    assert page.requests == []
    assert page.complaints == []


def test_the_page_asks_for_nothing_and_complains_of_nothing(page, report):
    assert min(page.open(report) for _ in range(3)) < 2
    is_quiet(page)
    assert page.run("document.title") != ""
    assert page.run("document.querySelectorAll('h1').length") == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_everyone_can_use_it(page, report, violations, scheme, width):
    page.prefer(scheme)
    page.resize(width, 900)
    page.open(report)
    page.run("document.querySelectorAll('details').forEach(each => { each.open = true })")
    assert violations(page) == []
    page.run(f"{FILMED}[0].click()")
    page.until(f"{FILM}.videoWidth > 0")
    assert violations(page) == []


def test_on_a_phone_nothing_sticks_out_and_names_are_not_broken_into_letters(page, report):
    page.resize(390, 800)
    page.open(report)
    assert page.run("document.documentElement.scrollWidth") <= 390
    lines = "[...document.querySelectorAll('.forest tbody th a')].map(each => each.getClientRects().length)"
    assert max(page.run(lines)) <= 2


def test_dark_is_dark(page, report):
    colours = {}
    for scheme in ("light", "dark"):
        page.prefer(scheme)
        page.open(report)
        colour = page.run("getComputedStyle(document.body).backgroundColor")
        colours[scheme] = sum(int(each) for each in colour.strip("rgba()").split(",")[:3])
    assert colours["light"] > 3 * 200
    assert colours["dark"] < 3 * 60


def test_the_keyboard_alone_reaches_everything(page, report):
    page.open(report)
    page.run(
        f"window.shown = [...document.querySelectorAll(`{REACHABLE}`)].filter({IS_SHOWN}); window.reached = new Set()"
    )
    wanted = page.run("shown.filter(each => each.tabIndex >= 0).length")
    assert wanted > 0
    for _ in range(wanted + 60):
        page.press("Tab")
        page.run("void reached.add(document.activeElement)")
    missed = page.run(
        "shown.filter(each => each.tabIndex >= 0 && !reached.has(each)).map(each => each.outerHTML.slice(0, 200))"
    )
    assert missed == []


def test_what_has_the_focus_shows_it(page, report):
    page.open(report)
    for _ in range(12):
        page.press("Tab")
        style = "(({outlineStyle, outlineWidth, boxShadow}) => [outlineStyle, outlineWidth, boxShadow])"
        outline, width, shadow = page.run(f"{style}(getComputedStyle(document.activeElement))")
        html = page.run("document.activeElement.outerHTML.slice(0, 200)")
        assert (outline != "none" and width != "0px") or shadow != "none", html


def test_every_film_plays_and_shows_its_poster_before(page, report):
    page.open(report)
    films = page.run(f"{FILMED}.length")
    assert films == 6
    for number in range(films):
        page.run(f"{FILMED}[{number}].click()")
        poster = f"Object.assign(new Image(), {{src: {FILM}.poster}})"
        width = page.run(f"(async image => {{ await image.decode(); return image.naturalWidth }})({poster})")
        assert width == 160
        page.until(f"{FILM}.currentTime > 0.1 && {FILM}.videoWidth > 0")
        page.press("Escape")
        page.until(f"!{FILM}")
    is_quiet(page)


def test_thumbnails_are_there_without_any_film_being_played(page, report):
    page.open(report)
    assert page.run(f"Promise.all({FILMED}.map(tile => tile.querySelector('img').decode())).then(() => true)")
    assert page.run("document.querySelectorAll('video').length") == 0


def test_a_film_is_opened_and_left_with_the_keyboard(page, report):
    page.open(report)
    page.run("document.querySelector('#filter [name=order]').focus()")
    page.press("Tab")
    page.run("window.began = document.activeElement.getAttribute('aria-label')")
    page.press("ArrowRight")
    assert page.run("document.activeElement.getAttribute('aria-label') !== began")
    page.press("Enter")
    page.until(f"{FILM} && {FILM}.currentTime > 0.1")
    page.press("Escape")
    page.until(f"!{FILM}")
    assert page.run("document.activeElement.matches('.tile')")


def moment(page) -> dict[str, Any]:
    """Return where the films, the cursors and the slider of the open player are [s, shares of the axis, step]."""
    cursors = "[...new Set([...document.querySelectorAll('dialog .cursor')].map(each => each.style.left))]"
    values = "[...document.querySelectorAll('dialog .trace .legend b')].map(each => each.textContent)"
    slider = "document.getElementById('position')"
    return page.run(
        f"({{film: {FILM}.currentTime, playing: !{FILM}.paused, step: Number({slider}.value), "
        f"steps: Number({slider}.max), cursors: {cursors}.map(parseFloat), values: {values}}})"
    )


def test_the_traces_beside_a_film_follow_it_and_seek_it(page, report):
    page.open(report)
    page.run(f"{FILMED}[0].click()")
    panels = page.run("[...document.querySelectorAll('dialog .trace figcaption')].map(each => each.innerText)")
    assert [panel.split()[0] for panel in panels[:4]] == ["Joint", "Gripper", "Actions", "Reward"]
    assert "between the bounds of each" in panels[2]
    assert page.run("document.querySelectorAll('dialog .trace .bound').length") == 2
    page.until(f"{FILM}.currentTime > 0.4")
    before = moment(page)
    assert before["playing"]
    assert len(before["cursors"]) == 1
    assert 0 < before["cursors"][0] <= 100
    # A click in the middle of any curve moves the film and all cursors there.
    box = page.run(
        "(box => [box.x, box.y, box.width])(document.querySelectorAll('dialog .graph')[2].getBoundingClientRect())"
    )
    for kind in ("mousePressed", "mouseReleased"):
        middle = {"x": box[0] + box[2] / 2, "y": box[1] + 10}
        page.call("Input.dispatchMouseEvent", {"type": kind, **middle, "button": "left", "clickCount": 1})
    after = moment(page)
    assert not after["playing"]
    assert after["step"] == pytest.approx(after["steps"] / 2, abs=1)
    assert after["film"] == pytest.approx(0.05 * (after["step"] + 0.5), abs=1e-3)
    assert after["cursors"][0] == pytest.approx(100 * after["step"] / after["steps"], abs=0.01)
    assert after["values"] != before["values"]
    is_quiet(page)


def test_a_film_goes_step_by_step_with_the_keyboard(page, report):
    page.open(report)
    page.run(f"{FILMED}[0].click()")
    page.until(f"{FILM}.currentTime > 0.2")
    page.press(" ")
    stopped = moment(page)
    assert not stopped["playing"]
    page.press("ArrowRight")
    page.press("ArrowRight")
    page.press("ArrowLeft")
    after = moment(page)
    assert after["step"] == stopped["step"] + 1
    assert after["film"] == pytest.approx(0.05 * (after["step"] + 0.5), abs=1e-3)
    page.press("End")
    assert moment(page)["step"] == moment(page)["steps"]
    # From its end a film plays again from its start.
    page.press(" ")
    page.until(f"!{FILM}.paused && {FILM}.currentTime < 2")


def test_two_films_side_by_side_share_one_clock(page, report):
    page.open(report)
    page.run("document.querySelector('[data-all]').click(); document.querySelector('.tile').click()")
    page.until("[...document.querySelectorAll('dialog video')].every(each => each.readyState > 1)")
    page.press(" ")
    page.press("Home")
    for _ in range(4):
        page.press("ArrowRight")
    times = page.run("[...document.querySelectorAll('dialog video')].map(each => each.currentTime)")
    assert times == pytest.approx([0.225, 0.225], abs=1e-3)
    assert page.run("document.querySelectorAll('dialog .side .traces .trace').length") >= 8
    assert len(moment(page)["cursors"]) == 1
    page.resize(390, 800)
    assert page.run("document.getElementById('player').scrollWidth") <= 390


def test_the_pictures_that_the_policy_saw_follow_the_film(page, tmp_path):
    eyes = {"enable_cameras": True, "camera_size": 32}
    seeing = {**JOBS[1], "name": "seeing", "num_episodes": 1, "arena_env_args": {**JOBS[1]["arena_env_args"], **eyes}}
    jobs, run = write_jobs(tmp_path / "jobs.json", [seeing]), tmp_path / "run"
    wanted = ["--record_viewport_video", "--record_observations", "all"]
    assert evaluate(["--eval_jobs_config", str(jobs), "--output_dir", str(run), *wanted]) == 0
    page.open(page_of(run, output=tmp_path / "report.html"))
    page.run(f"{FILMED}[0].click()")
    assert page.run("document.querySelectorAll('dialog .eye').length") >= 1
    page.press(" ")
    place = "document.querySelector('dialog .eye').style.backgroundPositionX"
    page.press("Home")
    assert page.run(place) in ("0px", "-0px")
    page.press("End")
    assert float(page.run(place).removesuffix("px")) < -1000
    is_quiet(page)


def test_the_page_answers_and_says_why_before_anything_else(page, report):
    page.open(report)
    heads = page.run("[...document.querySelectorAll('main > section > h2')].map(each => each.textContent)")
    assert heads[:3] == ["Answer", "Success", "Why episodes failed"]
    assert page.run("document.querySelector('.finding b').textContent").startswith(
        ("scripted is better", "Not decided")
    )
    page.run("document.querySelector('.typical').click()")
    page.until(f"{FILM}.currentTime > 0.1")
    assert page.run("document.querySelector('.typical img').naturalWidth") > 0


def test_the_filter_leaves_the_episodes_that_were_asked_for(page, report):
    page.open(report)
    page.run("document.querySelector('#filter [name=text]').focus()")
    page.type("random")
    assert page.run("document.getElementById('count').textContent") == "3 of 6 episodes"
    assert page.run(
        "[...document.querySelectorAll('.tile')].every(each => each.getAttribute('aria-label').startsWith('random'))"
    )


def test_two_jobs_are_shown_side_by_side_those_first_that_came_out_differently(page, report):
    page.open(report)
    page.run("document.querySelector('[data-all]').click()")
    assert page.run("document.getElementById('count').textContent") == "3 pairs of episodes"
    labels = "[...document.querySelectorAll('.tile')].map(each => each.getAttribute('aria-label'))"
    assert all(label.startswith("random, episode ") and " and success" in label for label in page.run(labels))
    page.run("document.querySelector('#filter [name=came]').value = '0'")
    page.run("document.getElementById('filter').dispatchEvent(new Event('input'))")
    assert page.run("document.getElementById('count').textContent") == "0 of 3 pairs of episodes"
    page.run("document.querySelector('#filter [name=came]').value = '12'")
    page.run("document.getElementById('filter').dispatchEvent(new Event('input'))")
    assert page.run("document.getElementById('count').textContent") == "3 pairs of episodes"
    page.run("document.querySelector('.tile').click()")
    page.until(
        "[...document.querySelectorAll('dialog[open] video')].filter(each => each.currentTime > 0.1).length === 2"
    )
    is_quiet(page)


def test_pairs_that_came_out_alike_follow_those_that_did_not(page, tmp_path):
    run = write_comparable(tmp_path / "run", {"old": "ssffe", "new": "ssfsf"})
    page.open(page_of(run, output=tmp_path / "report.html"))
    page.run("document.querySelector('[data-all]').click()")
    labels = "[...document.querySelectorAll('.tile')].map(each => each.getAttribute('aria-label'))"
    assert page.run(labels) == [
        "new, episode 3, success and failure",
        "new, episode 0, success and success",
        "new, episode 1, success and success",
        "new, episode 2, failure and failure",
        "new, episode 4, failure and error",
    ]


def test_the_longest_episodes_come_first_where_that_was_asked_for(page, report):
    page.open(report)
    page.run("document.querySelector('#filter [name=order]').value = 'long'")
    page.run("document.getElementById('filter').dispatchEvent(new Event('input'))")
    steps = page.run(
        "[...document.querySelectorAll('.tile')].map(each => Number(/(\\d+) steps/.exec(each.textContent)[1]))"
    )
    assert len(steps) == 6
    assert steps == sorted(steps, reverse=True)
    assert len(set(steps)) > 1


def test_films_that_are_not_embedded_lie_beside_the_page(page, run, tmp_path):
    assert main(["report", str(run), "--output", str(run / "small.html"), "--embed_mb", "0"]) == 0
    page.open(run / "small.html")
    page.run(f"{FILMED}[0].click()")
    page.until(f"{FILM}.currentTime > 0.1")
    assert page.run(f"{FILM}.src").endswith(".mp4")
    is_quiet(page)


@pytest.mark.parametrize("state", ["half finished", "without episodes", "only errors", "without reports"])
def test_runs_that_did_not_go_well_have_a_page_too(page, tmp_path, violations, state):
    options = {
        "half finished": {"finished": 2, "reports": False},
        "without episodes": {"finished": 0},
        "only errors": {"outcomes": (Outcome.ERROR,), "text": "physics diverged"},
        "without reports": {"reports": False},
    }[state]
    run = write_run(tmp_path / "run", ["one", "other"], **options)
    page.open(page_of(run, output=tmp_path / "report.html"))
    is_quiet(page)
    assert violations(page) == []
    text = page.run("document.body.innerText")
    assert "NaN" not in text
    assert "undefined" not in text
    assert "null" not in text


def test_a_damaged_run_has_a_page_that_says_so(page, tmp_path):
    run = write_run(tmp_path / "run", ["one", "other"])
    commits = run / "one" / "episode_results_rank0.jsonl"
    commits.write_bytes(commits.read_bytes()[:-300] + b"\xff\xfe{]\n" + commits.read_bytes()[-200:])
    (run / "other" / "job_report_rank0.json").write_text("{")
    page.open(page_of(run, output=tmp_path / "report.html"))
    is_quiet(page)
    assert "episode_results_rank0.jsonl" in page.run("document.body.textContent")


@pytest.mark.parametrize("text", HOSTILE_TEXTS, ids=range(len(HOSTILE_TEXTS)))
def test_names_that_want_to_be_more_stay_text(page, tmp_path, text):
    outcomes = (Outcome.SUCCESS, Outcome.ERROR)
    run = write_run(tmp_path / "run", HOSTILE_NAMES, text=text, outcomes=outcomes)
    page.open(page_of(run, output=tmp_path / "report.html"))
    is_quiet(page)
    assert page.run("window.hacked") is None
    assert page.run("[...document.images].filter(each => each.getAttribute('src') === 'x').length") == 0
    assert page.run("document.querySelectorAll('[onmouseover], [onclick], [onerror]').length") == 0
    shown = page.run("document.body.textContent")
    for name in HOSTILE_NAMES:
        assert name in shown


def test_a_text_of_one_word_does_not_push_the_page_apart(page, tmp_path):
    run = write_run(tmp_path / "run", ["a" * 80], text="w" * 300, outcomes=(Outcome.ERROR, Outcome.SUCCESS))
    page.resize(390, 800)
    page.open(page_of(run, output=tmp_path / "report.html"))
    assert page.run("document.documentElement.scrollWidth") <= 390


def test_words_from_right_to_left_keep_to_themselves(page, tmp_path):
    run = write_run(tmp_path / "run", ["one"], text="\u202egnol", outcomes=(Outcome.ERROR,))
    page.open(page_of(run, output=tmp_path / "report.html"))
    assert (
        page.run("document.body.innerText.includes('\\u202e') && !document.body.innerText.includes('\\u2068')") is False
    )


@pytest.mark.slow
def test_five_thousand_jobs_have_a_page(page, tmp_path):
    run = write_run(tmp_path / "run", [f"job-{index}" for index in range(5_000)], num_episodes=2)
    assert page.open(page_of(run, output=tmp_path / "report.html")) < 10
    is_quiet(page)
    assert "job-4999" in page.run("document.body.textContent")


def test_each_reason_of_a_job_that_failed_plays_three_films_from_the_page_alone(page, tmp_path):
    jobs = write_jobs(
        tmp_path / "jobs.json", [{**JOBS[1], "name": "idle", "num_episodes": 4, "policy_type": "zero_action"}]
    )
    run = tmp_path / "run"
    assert evaluate(["--eval_jobs_config", str(jobs), "--output_dir", str(run)]) == 0
    assert main(["film", str(run), "--episodes", "reasons"]) == 0
    page_of(run, output=run / "report.html")
    shutil.copy(run / "report.html", tmp_path / "alone.html")
    page.open(tmp_path / "alone.html")
    buttons = "[...document.querySelectorAll('.reasons button')]"
    assert "4 never reached" in page.run("document.querySelector('.reasons li').innerText")
    assert page.run(f"{buttons}.map(each => each.textContent)") == ["", "1", "2"]
    page.run(f"{buttons}[2].click()")
    page.until(f"{FILM}?.readyState > 1")
    is_quiet(page)
