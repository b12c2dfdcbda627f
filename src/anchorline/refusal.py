"""How a command ends with an error of ours: one line, no traceback, and an exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from anchorline.errors import AnchorlineError, ConfigError, ModelError


class Refusal(click.ClickException):
    """An error of ours, shown without a traceback."""

    exit_code = 1


class WrongSetting(Refusal):
    """A setting or a model that cannot be used: the exit code of a wrong command line."""

    exit_code = 2


@contextmanager
def refusing() -> Iterator[None]:
    """Errors of ours inside become a ``Refusal``."""
    try:
        yield
    except (ConfigError, ModelError) as error:
        raise WrongSetting(str(error)) from error
    except AnchorlineError as error:
        raise Refusal(str(error)) from error


class RefusingCommand(click.Command):
    """A command by itself that ends so."""

    def invoke(self, ctx: click.Context) -> Any:
        with refusing():
            return super().invoke(ctx)
