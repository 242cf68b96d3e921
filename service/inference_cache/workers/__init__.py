"""Several processes that serve one port, and the one that looks after them; what they serve is no business of this."""
