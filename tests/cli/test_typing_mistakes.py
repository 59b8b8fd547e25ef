"""Mistakes that people make when they type a command, each answered with the way out."""

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys

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
    "run jobs.json --seed x": "--seed: 'x' is not a whole number",
    "run jobs.json --nproc_per_node two --limt 3": "'--limit'? --nproc_per_node: 'two' is not a whole number",
    "run jobs.json --lease_s long": "--lease_s: 'long' is not a number",
    "run jobs.json --limit": "--limit: needs a value",
    "run jobs.json --num_epsiodes 3 --out x": "'--num_episodes'? --out: unknown option; did you mean '--output_dir'?",
    "run jobs.json -n 2": "did you mean '--num_episodes' or '--nproc_per_node'?",
    "run jobs.json --assignment dinamic": "did you mean 'dynamic'?",
    "run jobs.json --record_observations al": "there is no 'al'; did you mean 'all'?",
    "run jobs.json --video_episodes some": "give all, failures or a number",
    "run jobs.json --resume out/frist": "--resume: there is no directory",
    # One policy in one environment.
    "policy --policy scripted reach": "did you mean '--policy_type'?",
    "policy scripted reach": "--policy_type STR",
    "policy --policy_type scriptd reach": "did you mean 'scripted'?",
    "policy --policy_type scripted": "isaaclab-arena list environments shows them",
    "policy --policy_type scripted --num_episodes 1 raech": "did you mean 'reach'?",
    "policy --policy_type scripted --num_episodes 1 lift_object --objct cube": "did you mean '--object'?",
    "policy --policy_type rsl_rl --n_episodes 3 reach": "did you mean '--num_episodes'?",
    "policy --policy_type rsl_rl reach --ckpt a.pt --envs 3": "'--checkpoint_path'? --envs: unknown option; did you",
    "policy --policy_type scriptd --n_envs 3 reach": "'scripted'? --n_envs: unknown option; did you mean '--num_envs'?",
    "policy --policy_type rsl_rl --num_steps 1 reach --checkpoint_path no.pt": "a file that torch.save wrote",
    "policy --policy_type mine.py:act reach": "names a file; write its module: mine:act",
    "policy --policy_type mine.py:acct reach": "names a file; write its module: mine:acct",
    "policy --policy_type my.py:act reach": "names a file, and there is no 'my.py'",
    "policy --policy_type out/mine.py:act reach": "names a file, and there is no 'out/mine.py'",
    "policy --policy_type mine:acct reach": "'mine' has no 'acct'; did you mean 'act'?",
    "policy --policy_type mine:act --num_episodes 1 reach --gian 2": "did you mean '--gain'?",
    "collect --num_episodes 1 raech": "did you mean 'reach'?",
    "view --polcy scripted reach": "did you mean '--policy'?",
    # Runs that are over.
    "resume": "Directory of an evaluation",
    "resume out": "did you mean 'out/second'?",
    "resume out/frist": "did you mean 'out/first'?",
    "resume empty": "empty: holds no run: neither run.json nor params/train.yaml nor training.json",
    "resume --retry_errors out": "DIRECTORY: comes first: isaaclab-arena resume DIRECTORY --retry_errors",
    "resume out/first --num_epsiodes 3": "did you mean '--num_episodes'?",
    "status out/frist": "did you mean 'out/first'?",
    "status --jsn out/first": "did you mean '--json'?",
    "film out/first --episode all": "did you mean '--episodes'?",
    "film out/first --episodes all --job lfit": "did you mean 'lift'?",
    "film out/first --episodes failure": "did you mean 'failures'?",
    "film out/first --episodes some": "'some' is no list of episodes",
    "film out/first --episodes discordant": "--episodes discordant and --baseline RUN or JOB belong together",
    "film out/first --episodes all --baseline push": "--episodes discordant and --baseline RUN or JOB belong together",
    "film out/first --episodes discordant --baseline rust": "there is no job 'rust'",
    "film empty --episodes all": "holds no run.json",
    "compare out/first": "isaaclab-arena compare out/first --baseline lift",
    "compare": "isaaclab-arena compare BASELINE CANDIDATE",
    "compare out/first --bseline lift": "did you mean '--baseline'?",
    "compare out/first --baseline lfit": "did you mean 'lift'?",
    "compare out/first out/second --baseline lift": "or one run and its job that is the baseline",
    "compare out/first out/second --alpha 1.5": "--alpha: must be between 0 and 1, got 1.5",
    "compare out/first out/second --margin 0": "--margin: must be between 0 and 1, got 0",
    "compare out/first out/second --map lift": "--map: give OLD=NEW, two names of jobs, got 'lift'",
    "compare out/first out/second --github_summary": "needs GITHUB_STEP_SUMMARY, which GitHub sets",
    "leaderboard --alpa 0.1 out/first": "did you mean '--alpha'?",
    "report out/first --embed 3": "did you mean '--embed_mb'?",
    "merge out": "did you mean 'out/second'?",
    "merge out/first --by polic_type": "did you mean 'policy_type'?",
    "merge out/first --columns sucess_rate": "did you mean 'success_rate'?",
    "verify out/first --smple 3": "did you mean '--sample'?",
    "replay out/first": "name the directory of one of its jobs",
    "replay nowhere.hdf5": "DATASET: no recording at 'nowhere.hdf5'",
    "export out/first --lerobt": "did you mean '--lerobot'?",
    "export out/first": "give the one format to write: --arena or --robomimic",
    "export out/first --lerobot --job lift": "--job: is for --robomimic and --rerun alone",
    "export empty --arena --output there": "holds no run.json",
    **{f"export out/first --arena --output {place}": "--output: "
       for place in ("out/second", "no.pt", "link", "out/first")},
    "recover gone": "there is no directory 'gone'",
    # The rest.
    "list enviroments": "did you mean 'environments'?",
    "list environments my_environment": "adds its own by an entry point isaaclab_arena.environments",
    "list environments raech": "did you mean 'reach'?",
    "list environments lift_object --embodimnt so101": "embodimnt: environment 'lift_object' has no such",
    "list environments lift_object so101": "unexpected argument 'so101'",
    "list policies scripted --speed 2": "unexpected argument '--speed'",
    "validate": "isaaclab-arena validate jobs.json",
    "validate jobs.json --limt 2": "did you mean '--limit'?",
    "watch gone": "type: isaaclab-arena watch TRAINING jobs.json",
    "watch gone/training jobs.json": "no directory",
    "watch . --eval_jobs_confg jobs.json": "did you mean '--eval_jobs_config'?",
    "plan --diff 0.1 --baseline 0.5": "did you mean '--difference'?",
    "plan --difference 0.1": "with --baseline, or a run that has it with --from",
    "plan --difference 0.3 --baseline 0.8": "--difference: from a rate of 0.8 it must lead to another one",
    "plan --difference 0 --baseline 0.8": "--difference: from a rate of 0.8 it must lead to another one",
    "plan --difference 0.1 --baseline 1.8": "--baseline: must be 0 to 1, got 1.8",
    **{f"plan --difference 0.1 --baseline 0.8 --power {power}": "--power: must be between 0 and 1, got "
       for power in ("0", "1", "-0.5", "nan")},
    "plan --difference 0.1 --from out/first": "--job: say which of the run's jobs: lift, push, walk",
    "plan --difference 0.1 --from out/first --job walk": "--job: 'walk' does not measure success",
    "robustness jobs.json --axis light": "did you mean '--axes'?",
    "robustness jobs.json --axes robot_strat --output_dir arms": "did you mean 'robot_start'?",
    "robustness out/first --num_envs 3": "--num_envs",
    "controls jobs.json --output_dri arms": "did you mean '--output_dir'?",
    "quickstart there --limt 2": "did you mean '--limit'?",
    "quickstart no.pt": "is no directory; name another one",
    "new polcy mine": "Expected one of ('policy', 'task', 'robot')",
    "new policy My-Policy": "use lower case, digits and underscores: my_policy",
    "new policy class": "cannot be the name of a module",
    "new policy scripted": "there is a policy called 'scripted' already",
    "new task reach": "there is a task called 'reach' already",
    "new task torch": "there is a module called 'torch' already",
    "new policy empty": "'empty' is there already; nothing was written",
    "doctor --gpu all": "did you mean '--gpu_ids'?",
    "completion bsh": "Expected one of ('bash', 'zsh', 'fish')",
    "train --tsk reach": "did you mean '--task'?",
    "train reach --lr 3 --n_episodes 2": "learning_rate=... --n_episodes: unknown option; it is set by evaluation.",
    "train reach --resum x --num_envs many": "did you mean '--resume'? --num_envs: 'many' is not a whole number",
}  # fmt: skip
MISTAKES_IN_A_FILE = {
    "num_episodes": ({"n_episodes": 3}, "n_episodes: unknown key; did you mean 'num_episodes'?"),
    "a wrong value under it": ({"sead": "two"}, 'seed: "two" is not a whole number'),
    "device": ({"device": "cpu"}, "device: unknown key; it is an option of the command line: --device"),
    "object": ({"object": "can"}, "object: unknown key; an option of the environment is arena_env_args.object"),
    "sweep": ({"sweep": {"object": ["can"]}}, "an option of the environment is arena_env_args.object"),
    "reference": ({"seed": "${variables.sed}"}, "cannot be resolved"),
    "environment": ({"arena_env_args": {"enviroment": "reach"}}, "is missing; 'enviroment' is no name of it"),
    "checkpoint of a job": ({"checkpoint": "a.pt"}, "is an option of the policy: policy_config_dict.checkpoint"),
    "option of the policy": (
        {"policy_type": "rsl_rl", "arena_env_args": {"environment": "cartpole", "checkpoint_path": "a.pt"}},
        "this one belongs in policy_config_dict",
    ),
    "option of the environment": (
        {"policy_config_dict": {"sped": 1, "action_mode": 1}},
        "this one belongs in arena_env_args",
    ),
    "checkpoint": ({"policy_type": "rsl_rl", "policy_config_dict": {"ckpt": 1}}, "did you mean 'checkpoint_path'?"),
    "file": ({"policy_type": "mine.py:act"}, "names a file; write its module: mine:act"),
}


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [JOB]}))
    (tmp_path / "no.pt").write_text("hello")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    (tmp_path / "mine.py").write_text("def act(observation, gain: float = 1.0): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    for name in ("first", "second"):
        run = write_run(tmp_path / "out" / name, {"lift": "sf", "push": "ff", "walk": "uu"})
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


def test_all_mistakes_of_a_file_are_answered_at_once(directory, capsys):
    # Each job has a second mistake, in an option, which only shows if the check goes on after the first.
    jobs = [
        {**JOB, "policy_config_dict": {"sped": 1}, "name": name, **mistake}
        for name, (mistake, _) in MISTAKES_IN_A_FILE.items()
    ]
    (directory / "wrong.json").write_text(json.dumps({"swep": {}, "jobs": jobs}))
    assert main(["validate", "wrong.json", "--json"]) == 2
    problems = json.loads(capsys.readouterr().out)["problems"]
    lines = [" ".join(f"{each.get('job')} {each['key']}: {each['message']}".split()) for each in problems]
    assert "None swep: unknown key; did you mean 'sweep'?" in lines
    for name, (mistake, answer) in MISTAKES_IN_A_FILE.items():
        of_job = [line for line in lines if line.startswith(f"{name} ")]
        assert any(answer in line for line in of_job), (name, of_job)
        has_policy = "policy_type" not in mistake
        assert any("did you mean 'speed'?" in line for line in of_job) or not has_policy, (name, of_job)


@pytest.mark.parametrize("line", ["list robots", "list robot", "list environment lift", "list policy scrip"])
def test_a_part_of_a_name_will_do(line, capsys):
    assert main(line.split()) == 0
    shown = capsys.readouterr().out
    assert any(name in shown for name in ("panda", "lift_object", "scripted"))


@pytest.mark.parametrize("program", ["cli", "evaluation.eval_runner", "evaluation.policy_runner", "training.train"])
def test_ctrl_c_during_imports_is_one_line(program, directory):
    # A module that the program imports sends the signal, as a user may at any moment.
    (directory / "torch.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    command = [sys.executable, "-m", f"isaaclab_arena.{program}", "run", "jobs.json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")
