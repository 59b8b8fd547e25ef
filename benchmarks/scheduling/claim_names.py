"""Names of the claim server's figures that the simulation of a thousand ranks reads on their page."""

PAGE = "claim_rate"
ON_AN_EPISODE = "processor time of the claim server's process for an episode, with Ray's share"
ON_A_WORD = "the same for a heartbeat or a question of an idle rank"
