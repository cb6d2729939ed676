"""The gRPC service, its clients, and the backends `grpc` and `grpcs`."""
