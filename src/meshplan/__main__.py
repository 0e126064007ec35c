"""``python -m meshplan`` is the same as ``meshplan``."""

from meshplan.app.cli.main import main

if __name__ == "__main__":
    main()
