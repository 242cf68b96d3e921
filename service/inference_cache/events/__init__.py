"""The engine-side subscriber: engine KV events in, reports to the index out."""
