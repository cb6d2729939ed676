"""One module per command. Each imports what it needs when it runs, so that `umd --help` needs no extra and is fast."""
