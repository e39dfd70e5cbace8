"""`python -m xlexport`."""

from xlexport.commands import main

main()
