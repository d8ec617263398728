"""The wheel, installed by itself: it holds what it needs, and needs only what it declares."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from tests.docs.test_docs import check_command

ROOT = Path(__file__).parents[2]
# Python runs this at its start. Of packages that nobody asked for it says that they are missing.
SITECUSTOMIZE = """
import json, os, sys
class Finder:
    missing = set(json.loads(os.environ["MISSING_MODULES"]))
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in self.missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Finder())
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the files that the Dockerfile copies."""
    root = tmp_path_factory.mktemp("docker")
    dockerfile = (ROOT / "deploy/Dockerfile").read_text("utf-8")
    for line in re.findall(r"^COPY (?!--from)(.*)$", dockerfile, re.MULTILINE):
        *sources, target = line.split()
        for name in sources:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, root / target, ignore=ignored)
            else:
                shutil.copy(ROOT / name, root / target)
    build("wheel", root, root / "dist")
    [path] = (root / "dist").iterdir()
    return path


def build(kind: str, root: Path, directory: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(directory)]
    subprocess.run(command, cwd=root, check=True, capture_output=True)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("installed")
    zipfile.ZipFile(wheel).extractall(directory)
    (directory / "sitecustomize.py").write_text(SITECUSTOMIZE, "utf-8")
    return directory


def required_packages(name: str, extras: set[str], seen: set[tuple[str, str]]) -> set[str]:
    """Return the distributions that pip would install, in normalized spelling."""
    names = {normalize(name)}
    for text in metadata.requires(name) or []:
        requirement = Requirement(text)
        for extra in extras | {""}:
            key = (normalize(requirement.name), extra)
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            if key not in seen:
                seen.add(key)
                names |= required_packages(requirement.name, set(requirement.extras), seen)
    return names


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def environment(installed: Path, *extras: str) -> dict[str, str]:
    """Return the variables with which Python sees the wheel and what it requires, no more."""
    required = required_packages("covnmt", set(extras), set())
    missing = [
        module
        for module, owners in metadata.packages_distributions().items()
        if module not in ("covnmt", "sitecustomize") and not required & set(map(normalize, owners))
    ]
    assert "torch" in missing
    return {
        **os.environ,
        "PYTHONPATH": str(installed),
        "PYTHONUNBUFFERED": "1",
        "MISSING_MODULES": json.dumps(missing),
    }


def covnmt(*arguments: str, env: dict[str, str], text: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-m", "covnmt", *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_source_package_holds_tests_and_docs(tmp_path: Path) -> None:
    build("sdist", ROOT, tmp_path)
    [sdist] = tmp_path.iterdir()
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = {"Makefile", "tests/conftest.py", "docs/index.md", "scripts/setup", "mkdocs.yml"}
    assert tracked <= names


def test_wheel_translates_checks_and_shows_recipes(installed: Path, tmp_path: Path) -> None:
    env = environment(installed)
    where = covnmt("recipe", "show", "paper/gru10", env=env)
    assert "gru" in where
    assert covnmt("translate", "-m", "ja-en", env=env, text="この寺は京都市の北にある。\n") == (
        "This temple is located in the north of Kyoto City.\n"
    )
    pair = tmp_path / "ja", tmp_path / "en"
    pair[0].write_text("金閣寺は京都にある有名な寺です。\n", "utf-8")
    pair[1].write_text("Kinkaku-ji is a famous temple.\n", "utf-8")
    assert "京都" in covnmt("check", *map(str, pair), "-m", "ja-en", env=env)


def test_messages_of_the_wheel_name_the_package(installed: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "covnmt", "serve", "-m", "ja-en"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(installed),
    )
    assert done.returncode == 2
    assert "pip install 'covnmt[serve]'" in " ".join(done.stderr.split())


def test_commands_of_deployment_files_parse() -> None:
    dockerfile = (ROOT / "deploy/Dockerfile").read_text("utf-8")
    compose = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text("utf-8"))
    unit = (ROOT / "deploy/covnmt.service").read_text("utf-8")
    commands = [json.loads(text) for text in re.findall(r"^CMD (.*)$", dockerfile, re.MULTILINE)]
    commands.append(compose["services"]["covnmt"]["command"])
    commands += [line.split() for line in re.findall(r"bin/covnmt (serve.*)$", unit, re.MULTILINE)]
    assert len(commands) == 4
    for command in commands:
        check_command(command)


def test_workflows_are_yaml_and_call_targets_of_the_makefile() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    called = set()
    for path in (ROOT / ".github").rglob("*.yml"):
        assert isinstance(yaml.safe_load(path.read_text("utf-8")), dict)
        called |= set(re.findall(r"run: make ([a-z-]+)", path.read_text("utf-8")))
    assert called <= set(targets)
    assert called


def test_wheel_with_extra_serves(installed: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "covnmt", "serve", "-m", "ja-en", "--port", "0", "--workers", "1"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(installed, "serve"),
    )
    try:
        assert server.stderr
        address = next(
            match[0] for line in server.stderr if (match := re.search(r"http://[\d.]+:\d+", line))
        )
        assert b"<html" in urllib.request.urlopen(address).read()
        body = json.dumps({"text": "この寺は京都市の北にある。"}).encode()
        request = urllib.request.Request(
            f"{address}/v1/translate", body, {"Content-Type": "application/json"}
        )
        [translation] = json.load(urllib.request.urlopen(request))["translations"]
        assert "temple" in translation["text"]
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
