"""One image out of bytes that somebody else has written."""

import io
import struct
import zlib
from typing import Final

from PIL import Image

MAX_PIXELS: Final = 1 << 20
"""The largest image that is decoded: a small file can hold a huge one."""

_RAISED: Final = (
    EOFError,
    IndexError,
    KeyError,
    MemoryError,
    OSError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    TypeError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,  # where warnings are errors
)


def read_image(data: bytes, formats: tuple[str, ...]) -> Image.Image:
    """Decode an image.

    Args:
        data: the file.
        formats: that it may have, such as "PNG".

    Raises:
        ValueError: it is none that can be decoded, or has more than `MAX_PIXELS` pixels.
    """
    try:
        with Image.open(io.BytesIO(data), formats=formats) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(
                    f"an image of {image.width} × {image.height} pixels, more than {MAX_PIXELS:,}"
                )
            image.load()
            return image
    except _RAISED as error:
        raise ValueError(f"not a readable {' or '.join(formats)}") from error
