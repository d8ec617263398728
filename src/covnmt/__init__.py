"""covnmt: neural translators that keep track of what they have already translated.

The systems of "Modeling Coverage for Neural Machine Translation" (Tu et al., 2016).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covnmt.align import Aligner
    from covnmt.translate import Translator

__version__ = "0.1.0.dev0"
__all__ = ["Aligner", "Translator", "__version__"]


def __getattr__(name: str) -> Any:
    """The classes, loaded when first asked for: they bring PyTorch, `import covnmt` does not."""
    if name == "Aligner":
        from covnmt.align import Aligner

        return Aligner
    if name == "Translator":
        from covnmt.translate import Translator

        return Translator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
