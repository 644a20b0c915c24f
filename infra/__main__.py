"""`python -m infra` is `harmony`."""

from infra.cli.app import main

if __name__ == "__main__":
    main()
