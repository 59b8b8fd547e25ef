"""Mistakes that people make when they type a command, each answered with the way out."""

import dataclasses
import json
import re
import shlex

import pytest

from isaaclab_arena.cli.main import COMMANDS, main
from isaaclab_arena.evaluation.eval_runner import PROGRAM
from isaaclab_arena.storage.ledger import read_run_plan, write_run_plan
from tests.analysis.recorded_runs import write_run

JOB = {"name": "lift", "policy_type": "scripted", "arena_env_args": {"environment": "reach"}, "num_episodes": 1}
MISTAKES = {
    # Commands.
    "runn jobs.json": "did you mean 'run'?",
    "evaluate jobs.json": "did you mean 'run'?",
    "statsu out/first": "did you mean 'status'?",
    "": "isaaclab-arena COMMAND --help shows a command's options",
    # The job file of a run.
    "run": "type: isaaclab-arena run jobs.json",
    "run job.json": "there is no such file; did you mean 'jobs.json'?",
    "run jobs.jsn": "there is no such file; did you mean 'jobs.json'?",
    "run --jobs jobs.json": "the job file needs none: isaaclab-arena run jobs.json",
    "run --config=jobs.json": "the job file needs none: isaaclab-arena run jobs.json",
    "run jobs.json other.json": "unexpected argument 'other.json'",
    # Options of a run.
    "run jobs.json --num_epsiodes 3": "did you mean '--num_episodes'?",
    "run jobs.json --num-episode 3": "did you mean '--num_episodes'?",
    "run jobs.json --nproc 2": "did you mean '--nproc_per_node'?",
    "run jobs.json --gpus all": "did you mean '--gpu_ids'?",
    "run jobs.json --gpu_ids": "give indices such as 0 1, all or none",
    "run jobs.json --output x": "did you mean '--output_dir'?",
    "run jobs.json -limit 2": "did you mean '--limit'?",
    "run jobs.json limit=2": "did you mean '--limit=2'?",
    "run jobs.json --seed x": "--seed {None}|INT",
    "run jobs.json --assignment dinamic": "did you mean 'dynamic'?",
    "run jobs.json --record_observations al": "Expected one of ('none', 'state', 'all')",
    "run jobs.json --video_episodes some": "give all, failures or a number",
    "run jobs.json --resume out/frist": "--resume: there is no directory",
    # One policy in one environment.
    "policy --policy scripted reach": "did you mean '--policy_type'?",
    "policy scripted reach": "--policy_type STR",
    "policy --policy_type scriptd reach": "did you mean 'scripted'?",
    "policy --policy_type scripted": "isaaclab-arena list environments shows them",
    "policy --policy_type scripted --num_episodes 1 raech": "did you mean 'reach'?",
    "policy --policy_type scripted --num_episodes 1 lift_object --objct cube": "did you mean 'object'?",
    "collect --num_episodes 1 raech": "did you mean 'reach'?",
    "view --polcy scripted reach": "did you mean '--policy'?",
    # Runs that are over.
    "resume": "Directory of an evaluation",
    "resume out": "did you mean 'out/second'?",
    "resume out/frist": "did you mean 'out/first'?",
    "resume out/first --num_epsiodes 3": "did you mean '--num_episodes'?",
    "status out/frist": "did you mean 'out/first'?",
    "status --jsn out/first": "did you mean '--json'?",
    "film out/first --episode all": "did you mean '--episodes'?",
    "film out/first --episodes all --job lfit": "did you mean 'lift'?",
    "compare out/first": "isaaclab-arena compare out/first --baseline lift",
    "compare": "isaaclab-arena compare BASELINE CANDIDATE",
    "compare out/first --bseline lift": "did you mean '--baseline'?",
    "compare out/first --baseline lfit": "did you mean 'lift'?",
    "leaderboard --alpa 0.1 out/first": "did you mean '--alpha'?",
    "report out/first --embed 3": "did you mean '--embed_mb'?",
    "merge out": "did you mean 'out/second'?",
    "merge out/first --by polic_type": "did you mean 'policy_type'?",
    "merge out/first --columns sucess_rate": "did you mean 'success_rate'?",
    "verify out/first --smple 3": "did you mean '--sample'?",
    "replay out/first": "name the directory of one of its jobs",
    "export out/first --lerobt": "did you mean '--lerobot'?",
    "export out/first": "give the one format to write: --arena or --robomimic",
    "recover gone": "there is no directory 'gone'",
    # The rest.
    "list enviroments": "'environments'",
    "list environments raech": "did you mean 'reach'?",
    "validate": "isaaclab-arena validate jobs.json",
    "validate jobs.json --limt 2": "did you mean '--limit'?",
    "watch gone": "--eval_jobs_config PATH",
    "watch . --eval_jobs_confg jobs.json": "did you mean '--eval_jobs_config'?",
    "plan --diff 0.1 --baseline 0.5": "did you mean '--difference'?",
    "plan --difference 0.1": "with --baseline, or a run that has it with --from",
    "robustness jobs.json --axis light": "did you mean '--axes'?",
    "quickstart there --limt 2": "did you mean '--limit'?",
    "new polcy mine": "Expected one of ('policy', 'task', 'robot')",
    "doctor --gpu all": "did you mean '--gpu_ids'?",
    "completion bsh": "Expected one of ('bash', 'zsh', 'fish')",
    "train --tsk reach": "did you mean '--task'?",
}


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [JOB]}))
    for name in ("first", "second"):
        run = write_run(tmp_path / "out" / name, {"lift": "sf", "push": "ff"})
        plan = dataclasses.replace(read_run_plan(run), command_line=(PROGRAM, "jobs.json"))
        write_run_plan(run, plan, revises=True)
    return tmp_path


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_answered_with_the_way_out(line, directory, capsys):
    before = sorted(directory.rglob("*"))
    try:
        code = main(shlex.split(line))
    except SystemExit as left:
        code = left.code
    shown = capsys.readouterr()
    # The parser draws a frame around its answers, and breaks their lines.
    answer = " ".join(re.sub("[│─╭╮╰╯]", " ", shown.out + shown.err).split())
    assert code == 2
    assert MISTAKES[line] in answer
    assert "Traceback" not in answer
    assert sorted(directory.rglob("*")) == before, "a line with a mistake has written something"


def test_every_command_is_mistyped():
    assert set(COMMANDS) <= {line.partition(" ")[0] for line in MISTAKES}
    assert len(MISTAKES) >= 40
