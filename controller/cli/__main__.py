"""`python -m controller.cli`: the same as the command `akc`."""

from controller.cli import main

main()
