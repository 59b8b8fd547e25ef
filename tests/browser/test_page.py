"""report.html in a browser without a network: of runs that ended well, badly, or not at all."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.evaluation.eval_runner import main as evaluate
from tests.analysis.recorded_runs import write_run as write_comparable
from tests.browser.runs import HOSTILE_NAMES, HOSTILE_TEXTS, write_run
from tests.end_to_end.launching import write_jobs

SMALL = {"num_envs": 2, "viewport_width": 160, "viewport_height": 120}
JOBS = [
    {"name": name, "arena_env_args": {"environment": "reach", **SMALL}, "policy_type": policy, "num_episodes": 3}
    for name, policy in (("scripted", "scripted"), ("random", "random_action"))
]
COUNT = "document.getElementById('count').textContent"
LABELS = "[...document.querySelectorAll('.tile')].map(each => each.getAttribute('aria-label'))"
ALL_PAIRS = "document.querySelector('[data-all]').click()"
REACHABLE = "a[href], button, input, select, textarea, summary, [tabindex='0']"
FILMED = "[...document.querySelectorAll('.tile[data-film=yes]')]"
FILM = "document.querySelector('dialog[open] video')"
IS_SHOWN = "each => each.checkVisibility({checkVisibilityCSS: true}) && !each.disabled && !each.closest('[inert]')"


def played(directory: Path, jobs: list[dict[str, Any]], *options: str) -> Path:
    """Run jobs and return the directory of their run."""
    written, run = write_jobs(directory / "jobs.json", jobs), directory / "run"
    assert evaluate(["--eval_jobs_config", str(written), "--output_dir", str(run), *options]) == 0
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run with films of every episode."""
    return played(tmp_path_factory.mktemp("shown"), JOBS, "--record_viewport_video")


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


def choose(page, field: str, value: str) -> None:
    """Set a field of the filter."""
    page.run(f"document.querySelector('#filter [name={field}]').value = '{value}'")
    page.run("document.getElementById('filter').dispatchEvent(new Event('input'))")


def test_the_page_asks_for_nothing_and_shows_thumbnails_before_any_film_is_played(page, report):
    assert min(page.open(report) for _ in range(3)) < 2
    is_quiet(page)
    assert page.run("document.title") != ""
    assert page.run("document.querySelectorAll('h1').length") == 1
    assert page.run(f"Promise.all({FILMED}.map(tile => tile.querySelector('img').decode())).then(() => true)")
    assert page.run("document.querySelectorAll('video').length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_everyone_can_use_it_by_day_at_night_and_on_a_phone(page, report, violations, scheme, width):
    page.prefer(scheme)
    page.resize(width, 900)
    page.open(report)
    assert page.run("document.documentElement.scrollWidth") <= width
    lines = "[...document.querySelectorAll('.forest tbody th a')].map(each => each.getClientRects().length)"
    assert max(page.run(lines)) <= 2, "names are not broken into letters"
    colour = page.run("getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(each) for each in colour.strip("rgba()").split(",")[:3]) / 3
    assert brightness > 200 if scheme == "light" else brightness < 60
    page.run("document.querySelectorAll('details').forEach(each => { each.open = true })")
    assert violations(page) == []
    page.run(f"{FILMED}[0].click()")
    page.until(f"{FILM}.videoWidth > 0")
    assert violations(page) == []


def test_the_keyboard_alone_reaches_everything_and_what_has_the_focus_shows_it(page, report):
    page.open(report)
    page.run(f"window.shown = [...document.querySelectorAll(`{REACHABLE}`)].filter({IS_SHOWN})")
    page.run("window.shown = shown.filter(each => each.tabIndex >= 0)")
    page.run("window.reached = new Set()")
    wanted = page.run("shown.length")
    assert wanted > 0
    style = "(({outlineStyle, outlineWidth, boxShadow}) => [outlineStyle, outlineWidth, boxShadow])"
    for number in range(wanted + 60):
        page.press("Tab")
        page.run("void reached.add(document.activeElement)")
        if number < 12:
            outline, width, shadow = page.run(f"{style}(getComputedStyle(document.activeElement))")
            assert (outline != "none" and width != "0px") or shadow != "none", number
    assert page.run("shown.filter(each => !reached.has(each)).map(each => each.outerHTML.slice(0, 200))") == []


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


def test_a_film_is_opened_stepped_through_and_left_with_the_keyboard(page, report):
    page.open(report)
    page.run("document.querySelector('#filter [name=order]').focus()")
    page.press("Tab")
    page.run("window.began = document.activeElement.getAttribute('aria-label')")
    page.press("ArrowRight")
    assert page.run("document.activeElement.getAttribute('aria-label') !== began")
    page.press("Enter")
    page.until(f"{FILM} && {FILM}.currentTime > 0.2")
    page.press(" ")
    stopped = moment(page)
    assert not stopped["playing"]
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        page.press(key)
    after = moment(page)
    assert after["step"] == stopped["step"] + 1
    assert after["film"] == pytest.approx(0.05 * (after["step"] + 0.5), abs=1e-3)
    page.press("End")
    assert moment(page)["step"] == moment(page)["steps"]
    # From its end a film plays again from its start.
    page.press(" ")
    page.until(f"!{FILM}.paused && {FILM}.currentTime < 2")
    page.press("Escape")
    page.until(f"!{FILM}")
    assert page.run("document.activeElement.matches('.tile')")


def moment(page) -> dict[str, Any]:
    """Return the positions of films, cursors and slider of the open player [s, shares of the axis, step]."""
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


def test_two_films_side_by_side_share_one_clock(page, report):
    page.open(report)
    page.run(f"{ALL_PAIRS}; document.querySelector('.tile').click()")
    page.until("[...document.querySelectorAll('dialog video')].every(each => each.readyState > 1)")
    for key in (" ", "Home", *["ArrowRight"] * 4):
        page.press(key)
    times = page.run("[...document.querySelectorAll('dialog video')].map(each => each.currentTime)")
    assert times == pytest.approx([0.225, 0.225], abs=1e-3)
    assert page.run("document.querySelectorAll('dialog .side .traces .trace').length") >= 8
    assert len(moment(page)["cursors"]) == 1
    page.resize(390, 800)
    assert page.run("document.getElementById('player').scrollWidth") <= 390


@pytest.mark.slow
def test_the_pictures_that_the_policy_saw_follow_the_film(page, tmp_path):
    eyes = {**JOBS[1]["arena_env_args"], "enable_cameras": True, "camera_size": 32}
    seeing = {**JOBS[1], "name": "seeing", "num_episodes": 1, "arena_env_args": eyes}
    run = played(tmp_path, [seeing], "--record_viewport_video", "--record_observations", "all")
    page.open(page_of(run, output=tmp_path / "report.html"))
    page.run(f"{FILMED}[0].click()")
    assert page.run("document.querySelectorAll('dialog .eye').length") >= 1
    page.press(" ")
    place = "parseFloat(document.querySelector('dialog .eye').style.backgroundPositionX)"
    page.press("Home")
    assert page.run(place) == 0
    page.press("End")
    assert page.run(place) < -1000
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


def test_two_jobs_are_shown_side_by_side_and_chosen_by_how_they_came_out(page, report):
    page.open(report)
    page.run(ALL_PAIRS)
    assert page.run(COUNT) == "3 pairs of episodes"
    assert all(label.startswith("random, episode ") and " and success" in label for label in page.run(LABELS))
    for value, count in (("0", "0 of 3 pairs of episodes"), ("12", "3 pairs of episodes")):
        choose(page, "came", value)
        assert page.run(COUNT) == count
    page.run("document.querySelector('.tile').click()")
    playing = "[...document.querySelectorAll('dialog[open] video')].filter(each => each.currentTime > 0.1)"
    page.until(f"{playing}.length === 2")
    is_quiet(page)


def test_pairs_that_came_out_alike_follow_those_that_did_not(page, tmp_path):
    run = write_comparable(tmp_path / "run", {"old": "ssffe", "new": "ssfsf"})
    page.open(page_of(run, output=tmp_path / "report.html"))
    page.run(ALL_PAIRS)
    assert page.run(LABELS) == [
        "new, episode 3, success and failure",
        "new, episode 0, success and success",
        "new, episode 1, success and success",
        "new, episode 2, failure and failure",
        "new, episode 4, failure and error",
    ]


def test_the_longest_episodes_come_first_and_those_of_a_text_alone_where_that_was_asked_for(page, report):
    page.open(report)
    choose(page, "order", "long")
    steps = "[...document.querySelectorAll('.tile')].map(each => Number(/(\\d+) steps/.exec(each.textContent)[1]))"
    found = page.run(steps)
    assert (len(found), found) == (6, sorted(found, reverse=True))
    assert len(set(found)) > 1
    page.run("document.querySelector('#filter [name=text]').focus()")
    page.type("random")
    assert page.run(COUNT) == "3 of 6 episodes"
    assert all(label.startswith("random") for label in page.run(LABELS))


@pytest.mark.slow
def test_films_that_are_not_embedded_lie_beside_the_page(page, run, tmp_path):
    assert main(["report", str(run), "--output", str(run / "small.html"), "--embed_mb", "0"]) == 0
    page.open(run / "small.html")
    page.run(f"{FILMED}[0].click()")
    page.until(f"{FILM}.currentTime > 0.1")
    assert page.run(f"{FILM}.src").endswith(".mp4")
    is_quiet(page)


STATES = {
    "half finished": ("sf--", {"reports": False}),
    "without episodes": ("----", {}),
    "only errors": ("eeee", {"text": "physics diverged"}),
    "without reports": ("sfts", {"reports": False}),
}


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
def test_runs_that_did_not_go_well_have_a_page_too(page, tmp_path, violations, state):
    outcomes, how = STATES[state]
    run = write_run(tmp_path / "run", ["one", "other"], outcomes, **how)
    page.open(page_of(run, output=tmp_path / "report.html"))
    is_quiet(page)
    assert violations(page) == []
    text = page.run("document.body.innerText")
    assert not [word for word in ("NaN", "undefined", "null") if word in text]


def test_a_damaged_run_has_a_page_that_says_so(page, tmp_path):
    run = write_run(tmp_path / "run", ["one", "other"])
    commits = run / "one" / "episode_results_rank0.jsonl"
    commits.write_bytes(commits.read_bytes()[:-300] + b"\xff\xfe{]\n" + commits.read_bytes()[-200:])
    (run / "other" / "job_report_rank0.json").write_text("{")
    page.open(page_of(run, output=tmp_path / "report.html"))
    is_quiet(page)
    assert "episode_results_rank0.jsonl" in page.run("document.body.textContent")


@pytest.mark.slow
@pytest.mark.parametrize("text", [*HOSTILE_TEXTS, "w" * 300], ids=range(len(HOSTILE_TEXTS) + 1))
def test_names_that_want_to_be_more_stay_text_and_do_not_push_the_page_apart(page, tmp_path, text):
    run = write_run(tmp_path / "run", HOSTILE_NAMES, "sese", text=text)
    page.resize(390, 800)
    page.open(page_of(run, output=tmp_path / "report.html"))
    is_quiet(page)
    assert page.run("document.documentElement.scrollWidth") <= 390
    assert page.run("window.hacked") is None
    assert page.run("[...document.images].filter(each => each.getAttribute('src') === 'x').length") == 0
    assert page.run("document.querySelectorAll('[onmouseover], [onclick], [onerror]').length") == 0
    shown = page.run("document.body.textContent")
    assert all(name in shown for name in HOSTILE_NAMES)
    # Words from right to left keep to themselves.
    assert "\u202e" not in shown or "\u2068" in shown


@pytest.mark.slow
def test_five_thousand_jobs_have_a_page(page, tmp_path):
    run = write_run(tmp_path / "run", [f"job-{index}" for index in range(5_000)], "sf")
    assert page.open(page_of(run, output=tmp_path / "report.html")) < 10
    is_quiet(page)
    assert "job-4999" in page.run("document.body.textContent")


@pytest.mark.slow
def test_each_reason_of_a_job_that_failed_plays_three_films_from_the_page_alone(page, tmp_path):
    run = played(tmp_path, [{**JOBS[1], "name": "idle", "num_episodes": 4, "policy_type": "zero_action"}])
    assert main(["film", str(run), "--episodes", "reasons"]) == 0
    shutil.copy(page_of(run, output=run / "report.html"), tmp_path / "alone.html")
    page.open(tmp_path / "alone.html")
    buttons = "[...document.querySelectorAll('.reasons button')]"
    assert "4 never reached" in page.run("document.querySelector('.reasons li').innerText")
    assert page.run(f"{buttons}.map(each => each.textContent)") == ["", "1", "2"]
    page.run(f"{buttons}[2].click()")
    page.until(f"{FILM}?.readyState > 1")
    is_quiet(page)
