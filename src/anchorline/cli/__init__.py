"""The command line: commands, and the only place where the parts are joined."""

from anchorline.cli.main import main

__all__ = ["main"]
