"""`python -m cleave`: capture, and everything that the cleave command does."""

import sys

from ._command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
