"""covnmt: neural machine translation that keeps track of what has been translated.

The systems of "Modeling Coverage for Neural Machine Translation" (Tu et al., 2016).

    import covnmt

    model = covnmt.load("ja-en")
    print(model.translate(["金閣寺は京都にある。"])[0].text)
"""

import os
from importlib import import_module

# Not from typing, which takes a while to import: until the command line has begun, Ctrl-C shows a
# traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from covnmt.inference.align import Alignment
    from covnmt.inference.model import Model, load
    from covnmt.inference.model import Model as Aligner
    from covnmt.inference.model import Model as Checker
    from covnmt.inference.model import Model as Translator
    from covnmt.inference.omissions import OmissionReport
    from covnmt.inference.translate import Translation

__version__ = "0.2.0"
__all__ = [
    "Aligner",
    "Alignment",
    "Checker",
    "Model",
    "OmissionReport",
    "Translation",
    "Translator",
    "__version__",
    "load",
]

_EXPORTS = {
    "Alignment": ("align", "Alignment"),
    "Model": ("model", "Model"),
    "OmissionReport": ("omissions", "OmissionReport"),
    "Translation": ("translate", "Translation"),
    "load": ("model", "load"),
    # one model does all three; these names remain for programs written for earlier versions
    "Aligner": ("model", "Model"),
    "Checker": ("model", "Model"),
    "Translator": ("model", "Model"),
}


# How often a thread of OpenMP looks for work before it sleeps; libgomp reads it when torch is
# imported. With its default of 300,000, some milliseconds, threads on cores that other processes
# use too mostly wait for each other; there it is best to sleep at once, which on idle cores takes
# half of the speed (docs/LOG.md, 2026-11-19).
def _spin_count(load: str, cpus: int) -> int:
    """Choose by `/proc/loadavg`: are half of the CPUs busy, now and for a minute?"""
    average, _, _, running, _ = load.split()
    others = int(running.partition("/")[0]) - 1  # without this process
    return 0 if min(float(average), others) >= cpus / 2 else 1000


# What the user has set stays.
if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
    try:
        with open("/proc/loadavg", encoding="ascii") as _stream:  # noqa: PTH123 (takes no import)
            _count = _spin_count(_stream.read(), os.cpu_count() or 1)
    except (OSError, ValueError):  # not Linux, or not as Linux writes it
        _count = 1000
    os.environ["GOMP_SPINCOUNT"] = str(_count)


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that `import covnmt` is quick."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _EXPORTS[name]
    return getattr(import_module(f"covnmt.inference.{module}"), attribute)
