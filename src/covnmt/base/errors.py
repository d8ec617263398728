"""Errors whose message says what to do."""

from pathlib import Path

CHECKOUT = Path(__file__).parents[3]


class UserError(Exception):
    """Bad input: the command line prints the message and exits with code 2, without a traceback.

    The message says what was wrong, where (file and line where there is one), and what to do.
    """


def install_command(extra: str) -> str:
    """Return the command that installs an extra from where covnmt itself was installed."""
    source = CHECKOUT if (CHECKOUT / "constraints.txt").exists() else installed_from()
    if source and (source / "constraints.txt").exists():
        return f"pip install -c constraints.txt '.[{extra}]' in {source}"
    return f"pip install '{source or 'covnmt'}[{extra}]'"


def installed_from() -> Path | None:
    """Return the directory or the wheel that pip installed; None if it came from an index."""
    import json
    from importlib import metadata
    from urllib.parse import unquote, urlsplit

    try:
        url = json.loads(metadata.distribution("covnmt").read_text("direct_url.json") or "{}")[
            "url"
        ]
    except (metadata.PackageNotFoundError, ValueError, KeyError):
        return None
    path = Path(unquote(urlsplit(url).path))
    return path if url.startswith("file:") and path.exists() else None
