"""`python -m isthmus`, which is also what `torchrun -m isthmus` starts."""

from isthmus.cli import main

if __name__ == "__main__":
    main()
