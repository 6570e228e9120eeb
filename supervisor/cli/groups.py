"""Groups of commands."""

from __future__ import annotations

import click

from supervisor.text.suggestions import did_you_mean_or_all


class SuggestingGroup(click.Group):
    """A group that lists its commands in the order of their definition, and answers a misspelt name with the nearest one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            known = self.list_commands(ctx)
            hint = did_you_mean_or_all(name, known)
            raise click.UsageError(f"no command {name!r}{hint}", ctx)
        return super().resolve_command(ctx, args)
