"""Packages import downwards only, in the order that docs/architecture.md lists them."""

import ast
from collections.abc import Callable, Collection
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/covnmt"


def listed_packages() -> list[str]:
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    block = page.partition("## Imports go down")[2].partition("```\n")[2].partition("```")[0]
    return [line.split()[0] for line in block.splitlines()]


def imported_packages(path: Path) -> set[str]:
    """Return the packages of covnmt that a module imports, for types too."""
    packages: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "covnmt":
            packages |= {alias.name for alias in node.names if not alias.name.startswith("_")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("covnmt."):
            packages.add(str(node.module).split(".")[1])
    return packages


def test_imports_go_down() -> None:
    order = listed_packages()
    upwards = [
        f"{path.relative_to(PACKAGE)} imports {other}"
        for path in PACKAGE.rglob("*.py")
        if (package := path.relative_to(PACKAGE).parts[0]) in order
        for other in imported_packages(path)
        if order.index(other) < order.index(package)
    ]
    assert upwards == []


def test_only_packages_lie_in_the_package() -> None:
    modules = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert modules == {"__init__.py", "__main__.py", "py.typed"}
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages == set(listed_packages())


def type_names(path: Path) -> set[str]:
    """Return the names of the classes and type aliases that a module defines."""
    names: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names.add(node.targets[0].id)
    return {name for name in names if name[0].isupper() and not name.isupper()}


def function_names(path: Path) -> set[str]:
    """Return the names of the public functions of a module."""
    nodes = ast.parse(path.read_text("utf-8")).body
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    return {name for name in functions if not name.startswith("_")}


def shared_names(
    find: Callable[[Path], set[str]], exempt: Collection[str] = ()
) -> dict[str, list[str]]:
    """Return names that several modules define, and the modules."""
    modules: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        module = path.relative_to(PACKAGE).as_posix()
        if not module.startswith(tuple(exempt)):
            for name in find(path):
                modules.setdefault(name, []).append(module)
    return {name: paths for name, paths in modules.items() if len(paths) > 1}


def test_no_two_types_share_a_name() -> None:
    assert shared_names(type_names) == {}


def test_no_two_public_functions_share_a_name() -> None:
    # commands have the names that users type, and kernels those of the functions they replace
    assert shared_names(function_names, ("cli/", "kernels/triton/")) == {}
