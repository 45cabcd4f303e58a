"""`python -m ferrule`."""

from ferrule.cli import main

main()
