"""The command `isthmus`, `python -m isthmus`, and what `torchrun -m isthmus` starts."""

import sys


def main() -> None:
    """Runs the command line; an interrupt while that is still being imported says nothing."""
    try:
        from isthmus.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
