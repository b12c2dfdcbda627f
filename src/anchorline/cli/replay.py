import click


@click.command()
def replay() -> None:
    """x"""
