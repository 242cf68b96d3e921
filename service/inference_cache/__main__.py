"""`python -m inference_cache` is the `inference-cache` command."""

from __future__ import annotations

from inference_cache.cli.main import main

if __name__ == "__main__":
    main()
