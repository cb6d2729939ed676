"""The command `umd`: one small file per command under `commands`, documented in docs/cli.md."""
