"""Pure rules of the index: no Redis, no gRPC, no clock, no environment. Time comes in as `now_ms`."""
