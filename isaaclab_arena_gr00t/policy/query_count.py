"""Count the queries of a model, and log how many were saved."""

import logging
from dataclasses import dataclass

# Below the program's own logger, so that it is in the log of the rank.
logger = logging.getLogger("isaaclab_arena.gr00t")


@dataclass(kw_only=True)
class QueryCount:
    """How often a model was asked, and for how much.

    Attributes:
        queries: Calls of the model.
        slots_needed: Env slots that needed a chunk, added up.
        slots_asked: Env slots that the model was asked for, those that fill up a query included.
        slots_of_all: What asking for all env slots whenever one needs a chunk would have come to.
    """

    queries: int = 0
    slots_needed: int = 0
    slots_asked: int = 0
    slots_of_all: int = 0

    def log(self, name: str) -> None:
        """Log how many queries were saved by asking for single env slots, if there were any.

        Args:
            name: The policy.
        """
        if self.queries:
            logger.info(
                "%s: %d queries for %d env slots, %d with those that fill up; "
                "all env slots each time would have been %d",
                name,
                self.queries,
                self.slots_needed,
                self.slots_asked,
                self.slots_of_all,
            )
