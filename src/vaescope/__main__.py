"""`python -m vaescope`: the command line, where its script is not on the path."""

from vaescope.cli import main

if __name__ == "__main__":
    main()
