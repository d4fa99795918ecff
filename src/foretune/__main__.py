"""`python -m foretune`."""

from foretune.cli.main import main

if __name__ == "__main__":
    main()
