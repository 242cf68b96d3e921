"""The gRPC service: handlers decode, make one call and encode."""
