"""`python -m xlexport`."""

from xlexport.cli import main

main()
