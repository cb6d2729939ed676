"""Generated from protos/umd by `make protos`."""
