"""`python -m tokenspeed`."""

from tokenspeed.cli import main

main()
