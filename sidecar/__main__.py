"""`python -m sidecar`: the command line, where the script is not on the PATH."""

from sidecar.cli import main

if __name__ == "__main__":
    main()
