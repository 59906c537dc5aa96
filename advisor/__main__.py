"""`python -m advisor` is the `ddp-advisor` command."""

from advisor.cli import main

main()
