"""Render the HTML templates of this package."""

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from covnmt.base.table import Bold


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("covnmt.evaluation"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.tests["bold"] = lambda cell: isinstance(cell, Bold)
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    return environment


def render_template(name: str, **values: object) -> str:
    """Fill in a template; every text is escaped."""
    return _environment().get_template(name).render(values)
