"""``python -m anchorline``."""

from anchorline.cli import main

if __name__ == "__main__":
    main()
