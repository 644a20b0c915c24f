"""`python -m infra` is `harmony`."""

from infra.cli import main

if __name__ == "__main__":
    main()
