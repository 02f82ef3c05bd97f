"""`python -m sinkscope`, and the command that the package installs."""

from sinkscope.cli.app import main

if __name__ == "__main__":
    main()
