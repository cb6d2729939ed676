"""Modules generated from protos/. Importing this package first checks that they fit what is installed."""

from umd_grpc.versions import check_versions

check_versions()
