"""`python -m umd_cli` is `umd`."""

from umd_cli.main import main

main()
