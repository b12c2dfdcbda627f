"""Recording what agents send, with the wording replaced."""
