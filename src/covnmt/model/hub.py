"""Models on the Hugging Face hub, named OWNER/NAME (extra `hub`)."""

import re
from importlib.util import find_spec
from pathlib import Path

from covnmt.base.console import log
from covnmt.base.errors import UserError, install_command
from covnmt.base.files import read_json

HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
# what a trained or exported model is made of; nothing else is downloaded or uploaded
MODEL_FILES = (
    *("config.json", "README.md", "model.safetensors", "onnx.json", "*.onnx", "weights.bin"),
    *("source.*", "target.*", "shortlist.*", "check.*", "lexicon.*"),
)
CARD = "README.md"


def is_hub_name(name: Path | str) -> bool:
    """Return whether a name has the form of one on the hub, and can be looked up there."""
    return HUB_NAME.fullmatch(str(name)) is not None and _is_installed()


def install_hint(name: Path | str) -> str:
    """Return what to install if this is the name of a model on the hub, or an empty string."""
    if _is_installed() or not HUB_NAME.fullmatch(str(name)):
        return ""
    return f"; for a model on the Hugging Face hub, first: {install_command('hub')}"


def _is_installed() -> bool:
    return find_spec("huggingface_hub") is not None


def download_model(name: str) -> Path:
    """Return the directory of a model in the hub's local cache; download what is missing there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(MODEL_FILES)))
    except RepositoryNotFoundError:
        raise UserError(
            f"{name}: no such directory, and no such model on the Hugging Face hub"
        ) from None
    except LocalEntryNotFoundError:
        raise UserError(
            f"{name}: no such directory, and the Hugging Face hub cannot be reached"
        ) from None


def push_model(directory: Path, name: str, license_name: str | None, private: bool) -> str:
    """Upload a model in one commit; return its address."""
    try:
        from huggingface_hub import CommitOperationAdd, HfApi, errors
    except ModuleNotFoundError:
        raise UserError(
            f"this needs huggingface_hub, which is not installed: {install_command('hub')}"
        ) from None
    if not HUB_NAME.fullmatch(name):
        raise UserError(f"{name}: write the name on the hub as OWNER/NAME")
    files = sorted({path for pattern in MODEL_FILES for path in directory.glob(pattern)})
    if directory / "config.json" not in files:
        raise UserError(f"{directory}: no model: there is no config.json")
    operations = [CommitOperationAdd(path.name, path) for path in files if path.name != CARD]
    card = model_card(directory, license_name)
    operations.append(CommitOperationAdd(CARD, card.encode()))
    log(f"uploading {len(operations)} files to {name}")
    api = HfApi(library_name="covnmt")
    # of the HTTP client that it uses, which differs between versions
    failures: tuple[type[Exception], ...] = (OSError, vars(errors)["HTTPError"])
    try:
        api.create_repo(name, private=private, exist_ok=True)
        commit = api.create_commit(name, operations, commit_message="Upload a covnmt model")
    except errors.LocalTokenNotFoundError:
        raise UserError("no access token of the hub: run `hf auth login`") from None
    except failures as error:
        raise UserError(f"{name}: the upload failed: {error}") from None
    return str(commit.repo_url)


def model_card(directory: Path, license_name: str | None) -> str:
    """Return the model's card with the head that the hub reads: languages, license, library."""
    path = directory / CARD
    card = path.read_text("utf-8") if path.exists() else f"# {directory.name}\n"
    if card.startswith("---\n"):
        return card
    sides = [read_json(directory / f"{side}.json") for side in ("source", "target")]
    languages = [side["language"] for side in sides if side.get("language")]
    head = ["library_name: covnmt", "pipeline_tag: translation"]
    if languages:
        head.append(f"language: [{', '.join(languages)}]")
    if license_name:
        head.append(f"license: {license_name}")
    return "\n".join(["---", *head, "---", "", card])
