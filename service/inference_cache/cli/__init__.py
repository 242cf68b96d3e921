"""The `inference-cache` command: every sub-command parses, calls one function and prints."""
