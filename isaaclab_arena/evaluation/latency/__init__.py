"""Late answers: policies whose answers to queries come some control steps of simulated time after them."""
