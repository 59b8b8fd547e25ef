"""A place in which runs meet faults: the jobs, what an undisturbed run makes of them, and a server that runs them."""

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.faults.file_operations import Effect, Fault
from tests.faults.fork_server import Ended, ForkServer
from tests.faults.invariants import check_results, check_whole, committed, is_called_complete
from tests.faults.small_run import read_diary, write_small_jobs

CAUSES = {
    Effect.SHORT_WRITE: ("the disk is full",),
    **dict.fromkeys((Effect.NO_SPACE_ONCE, Effect.NO_SPACE), ("No space left on device", "the disk is full")),
    **dict.fromkeys((Effect.IO_ERROR_ONCE, Effect.IO_ERROR), ("Input/output error",)),
    **dict.fromkeys((Effect.NO_ACCESS_ONCE, Effect.NO_ACCESS), ("Permission denied",)),
}
"""What the screen says of each effect, one of them; of a death it says nothing."""


class World:
    """The jobs (with the keys of `write_small_jobs`), the undisturbed run, and one run that meets faults."""

    def __init__(
        self, directory: Path, server: ForkServer, *options: str, output: Path | None = None, **keys: Any
    ) -> None:
        self.server = server
        self.output = output or directory / "out"
        self.diary = directory / "diary"
        self.undisturbed = directory / "undisturbed"
        self._directory = directory
        self._jobs = write_small_jobs(directory / "jobs.json", **keys)
        self._options = options
        ended = self.run("--output_dir", self.undisturbed)
        assert ended.exit_code == 0, ended.output
        check_whole(self.undisturbed, self.undisturbed)

    def begin(self, *, faults: Mapping[int, Fault] | None = None, **how: Any) -> Ended:
        """Start a new run, in the place of any earlier one; see `run`."""
        shutil.rmtree(self.output, ignore_errors=True)
        ended = self.run("--output_dir", self.output, faults=faults, **how)
        return self._checked(ended, faults)

    def resume(self, *, faults: Mapping[int, Fault] | None = None, **how: Any) -> Ended:
        """Go on with the run; nothing that has a commit line may run again. See `run`."""
        before = committed(self.output)
        ended = self.run("--output_dir", self.output, "--resume", faults=faults, **how)
        again = before.keys() & self.started.keys()
        assert not again, f"executed although committed: {sorted(again)}\n{ended.output}"
        return self._checked(ended, faults)

    def resume_to_the_end(self, *, ranks: int = 1) -> None:
        """Go on with the run, undisturbed; afterwards it is what an undisturbed run would have been."""
        ended = self.resume(ranks=ranks)
        assert ended.exit_code == 0, ended.output
        check_whole(self.output, self.undisturbed)

    def keep(self, name: str) -> None:
        """Keep a copy of the run's directory as it is now."""
        shutil.rmtree(self._directory / name, ignore_errors=True)
        if self.output.exists():
            shutil.copytree(self.output, self._directory / name)

    def bring_back(self, name: str) -> None:
        """Put the run's directory back as it was kept."""
        shutil.rmtree(self.output, ignore_errors=True)
        if (self._directory / name).exists():
            shutil.copytree(self._directory / name, self.output)

    @property
    def started(self) -> Counter[tuple[str, int]]:
        """How often the last command has started each episode, by job and index."""
        return read_diary(self.diary)

    def arguments(self, *arguments: object) -> list[object]:
        """Return the whole command line for these arguments."""
        return ["--eval_jobs_config", self._jobs, *arguments, *self._options]

    def run(self, *arguments: object, **how: Any) -> Ended:
        """Run the evaluation runner with these arguments, and check nothing; see `ForkServer.run`."""
        self.diary.unlink(missing_ok=True)
        return self.server.run(self.arguments(*arguments), directory=self.output, diary=self.diary, **how)

    def _checked(self, ended: Ended, faults: Mapping[int, Fault] | None) -> Ended:
        assert max(self.started.values(), default=0) <= 1, ended.output
        if ended.exit_code == 0:
            # What cannot be removed any more at the very end is no failure, and the next resume removes it.
            check = check_results if faults else check_whole
            check(self.output, self.undisturbed)
            return ended
        # It may have died between its last table and its last word; then all results are there.
        if is_called_complete(self.output):
            check_results(self.output, self.undisturbed)
        assert "Traceback" not in ended.output, ended.output
        assert "Logging error" not in ended.output, ended.output
        for rank, fault in (faults or {}).items():
            if fault.effect in CAUSES and ended.met[rank] and ended.exit_codes[rank]:
                is_said = any(cause in ended.output for cause in CAUSES[fault.effect])
                assert is_said, f"{ended.met[rank]}: {ended.output}"
        return ended
