"""The claim server of a cluster dies before and after each of its transitions, and the next start ends the run."""

from collections import Counter
from collections.abc import Sequence

import pytest

from isaaclab_arena.distributed.ranks import ClaimsLostError
from isaaclab_arena.evaluation.cluster.claim_server import Call, ClaimServer, Life
from isaaclab_arena.evaluation.eval_runner import main
from isaaclab_arena.results import merge_results
from tests.evaluation.cluster.test_driver import REACH, ClaimServerNextDoor, run_alone
from tests.faults.invariants import committed

CUTS = {
    "a piece is claimed": ("claim", ""),
    "a job begins": ("keep", "job_begun_"),
    "an episode may begin": ("begin", ""),
    "an episode is committed": ("commit", ""),
    "a piece is played": ("finish", ""),
    "a job is reported": ("keep", "job_report_"),
}
"""The call of each transition, and a part of the name of its file."""


JOB: dict[str, object] = {**REACH, "policy_type": "tests.evaluation.cluster.policies.LatePolicy"}


class CutClaimServer(ClaimServerNextDoor):
    """Dies before a call, or once it has done what that asks for and before it says so."""

    def __init__(self, claim_server: ClaimServer, event: str, *, is_done: bool) -> None:
        super().__init__(claim_server)
        self._method, self._word = CUTS[event]
        self._is_done, self.is_cut = is_done, False

    def ask(self, calls: Sequence[Call]):
        for number, (method, arguments, _) in enumerate(calls):
            if not self.is_cut and method == self._method and self._word in str(arguments):
                self.is_cut = True
                self._claim_server.ask(calls[: number + self._is_done], Life(rank=0))
                self._claim_server.lock.release()
        if self.is_cut:
            raise ClaimsLostError("the run's claim server does not answer")
        return super().ask(calls)


# Before a call a run is what the call before left of it.
@pytest.mark.parametrize("is_done", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("event", CUTS)
def test_the_next_start_ends_a_run_whose_claim_server_died(tmp_path, event, is_done):
    cuts: list[CutClaimServer] = []

    def cut(claim_server: ClaimServer) -> CutClaimServer:
        cuts.append(CutClaimServer(claim_server, event, is_done=is_done))
        return cuts[0]

    with pytest.raises(ClaimsLostError, match="does not answer"):
        run_alone(tmp_path, JOB, node=tmp_path / "node", claim_server_class=cut)
    assert cuts[0].is_cut
    words = ["--eval_jobs_config", str(tmp_path / "jobs.json"), "--resume", str(tmp_path / "out"), "--device", "cpu"]
    assert main([*words, "--no_report"]) == 0
    assert committed(tmp_path / "out") == Counter({("reach", 0): 1, ("reach", 1): 1})
    assert merge_results(tmp_path / "out").complete
