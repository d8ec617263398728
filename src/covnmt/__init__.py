"""covnmt: neural translators that keep track of what they have already translated.

The systems of "Modeling Coverage for Neural Machine Translation" (Tu et al., 2016).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covnmt.inference.align import Aligner
    from covnmt.inference.omissions import OmissionChecker
    from covnmt.inference.translate import Translator

__version__ = "0.1.0.dev0"
__all__ = ["Aligner", "OmissionChecker", "Translator", "__version__"]

_PLACES = {
    "Aligner": "inference.align",
    "OmissionChecker": "inference.omissions",
    "Translator": "inference.translate",
}


def __getattr__(name: str) -> Any:
    """The classes, loaded when first asked for, so that `import covnmt` is quick."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"covnmt.{_PLACES[name]}"), name)
