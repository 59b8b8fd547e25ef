"""Choose the batch size for a policy's network, so that results do not depend on an env slot's place in the batch."""
