"""HTTP listeners: health, readiness and metrics for everybody, operations for the operator."""
