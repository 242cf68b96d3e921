"""Inference Cache: which engine replica holds a prompt's KV-cache blocks, asked over gRPC, kept in Redis."""

__version__ = "0.1.0"
