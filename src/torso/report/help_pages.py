"""Help pages that are the same with every version of Typer, and usage errors in one line.

Newer versions of Typer print `<bool>` after a flag. Typer 0.20 loses the help of arguments with Click 8.5. A usage
error, such as an unknown option, becomes a RequestError.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.utils import get_params_from_function

from torso.errors import RequestError
from torso.report.usage import WrongUsage, in_one_line


def plain_help(app: typer.Typer) -> None:
    """Gives plain help pages to all commands of an app and of the apps in it. Call it when all are registered."""
    app.info.cls = PlainGroup
    for command in app.registered_commands:
        command.cls = PlainCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            plain_help(group.typer_instance)


def _plain(params: list[Any], callback: Any) -> list[Any]:
    """The parameters without `<bool>`, and with the help that the callback's annotations declare."""
    declared = get_params_from_function(inspect.unwrap(callback)) if callback is not None else {}
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
        if getattr(param, "help", "") is None and param.name in declared:
            param.help = getattr(declared[param.name].default, "help", None)
    return params


class PlainCommand(TyperCommand):
    """A command with a plain help page."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx), self.callback)


class PlainGroup(TyperGroup):
    """A group of commands with a plain help page; usage errors become RequestErrors."""

    def main(self, *args: Any, **more: Any) -> Any:
        if not more.get("standalone_mode", True):
            return super().main(*args, **more)
        try:
            status = super().main(*args, **{**more, "standalone_mode": False})
        except WrongUsage as error:
            if type(error).__name__ != "NoArgsIsHelpError":
                raise RequestError(in_one_line(error)) from None
            error.show()  # prints the help page
            status = error.exit_code
        sys.exit(status if isinstance(status, int) else 0)

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx), self.callback)
