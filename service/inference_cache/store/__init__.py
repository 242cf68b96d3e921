"""The index in Redis, its in-memory oracle, and everything that knows how Redis is reached."""
