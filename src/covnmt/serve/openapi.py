"""What the OpenAPI document says beyond the routes: API keys."""

from typing import Any

from covnmt.serve.security import PROTECTED_PATHS

WITHOUT_KEY = ("/languages",)
SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def describe_security(document: dict[str, Any]) -> None:
    """Say which operations of a server with API keys need one, and how to send it."""
    document["components"]["securitySchemes"] = SCHEMES
    for path, operations in document["paths"].items():
        protected = path.startswith("/v1/") or path in PROTECTED_PATHS
        if protected and path not in WITHOUT_KEY:
            for operation in operations.values():
                operation["security"] = [{scheme: []} for scheme in SCHEMES]
