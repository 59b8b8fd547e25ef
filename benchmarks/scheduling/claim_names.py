"""The page of the keeper's figures, and the names of those that the simulation of a thousand ranks reads there."""

PAGE = "claim_rate"
ON_AN_EPISODE = "processor time of the keeper's process for an episode, with Ray's share"
ON_A_WORD = "the same for a heartbeat or a question of an idle rank"
