import json
import subprocess

import pytest

import isaaclab_arena as arena
from tests.end_to_end.launching import ROOT, environment, patience_s
from tests.preloaded.interpreter import preloaded_python

PROGRAM = """
import json, sys
import torch, torch.distributed as dist
import isaaclab_arena as arena
from tests.api.policies import push

rank, directory = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{directory}/meet", rank=rank, world_size=2)
group = dist.group.WORLD
few = {"environment": "cartpole", "policy": push, "num_episodes": 3, "num_envs": 1, "seed": 5}
found = [arena.evaluate(**few).episodes for _ in range(2)]
alone = arena.evaluate(num_ranks=1, **few)
word = torch.ones(1)
dist.all_reduce(word)
print(json.dumps({
    "episodes": [each.to_csv() for each in found],
    "alone": alone.episodes.to_csv(),
    "group": dist.group.WORLD is group and word.item() == 2,
}))
"""


def test_the_ranks_of_a_process_group_share_the_episodes_and_get_the_same_results(tmp_path):
    (tmp_path / "rank.py").write_text(PROGRAM)
    processes = [
        subprocess.Popen(
            [preloaded_python(), str(tmp_path / "rank.py"), str(rank), str(tmp_path)],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [json.loads(process.communicate(timeout=patience_s(120))[0].splitlines()[-1]) for process in processes]
    tables = {text for each in told for text in [*each["episodes"], each["alone"]]}
    assert len(tables) == 1
    assert all(each["group"] for each in told)


def test_a_rank_starts_no_ranks(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(arena.ConfigError, match="num_ranks: this process is one of several ranks already"):
        arena.evaluate(environment="cartpole", policy="zero_action", num_episodes=1, num_ranks=2)
