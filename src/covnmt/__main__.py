"""`python -m covnmt` is the command `covnmt`."""

from covnmt.cli import main

if __name__ == "__main__":
    main()
