"""covnmt: neural translators that keep track of what they have already translated.

The systems of "Modeling Coverage for Neural Machine Translation" (Tu et al., 2016).
"""

__version__ = "0.1.0.dev0"
