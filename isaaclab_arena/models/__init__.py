"""Networks of policies, rebuilt from checkpoints without the library that trained them."""
