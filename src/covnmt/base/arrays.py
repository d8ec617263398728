"""Types of NumPy arrays, and what reading them from damaged files raises."""

import struct
import zlib
from lzma import LZMAError
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
DoubleArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
AnyArray = NDArray[Any]

# What NumPy and zipfile raise for damaged .npy and .npz files.
ARRAY_FILE_ERRORS = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    TypeError,
    AttributeError,
    MemoryError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    TokenError,
    BadZipFile,
    LZMAError,
    struct.error,
    zlib.error,
)
