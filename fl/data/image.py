"""One image out of bytes that somebody else has written."""

import io
import struct
import zlib
from typing import Final

from PIL import Image, ImageOps

MAX_PIXELS: Final = 1 << 20
"""The largest image that is decoded: a small file can hold a huge one."""

_GREY: Final = ("1", "L", "LA")
_DEEP: Final = ("I", "F")  # and "I;16" with its kin: converting these would cut them off at 255

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
)
_TOO_LARGE: Final = (
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,  # where warnings are errors
)


def read_image(data: bytes, formats: tuple[str, ...]) -> Image.Image:
    """Decode an image, the way up that its camera says.

    Args:
        data: the file.
        formats: that it may have, such as "PNG".

    Returns:
        In mode "L" if it is grey, else "RGB"; transparency is left out.

    Raises:
        ValueError: it is none that can be decoded, has more than `MAX_PIXELS` pixels or more than
            8 bits for each, or moves.
    """
    try:
        with Image.open(io.BytesIO(data), formats=formats) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(
                    f"an image of {image.width} × {image.height} pixels, more than {MAX_PIXELS:,}"
                )
            if image.mode.startswith(_DEEP):
                raise ValueError("an image of more than 8 bits for each pixel")
            if (frames := getattr(image, "n_frames", 1)) > 1 and image.format == "PNG":
                raise ValueError(f"an image of {frames} frames, and one is wanted")
            upright = ImageOps.exif_transpose(image)
            if upright.mode == "P":  # its colours may have degrees of transparency
                upright = upright.convert("RGBA")
            return upright.convert("L" if upright.mode in _GREY else "RGB")
    except _TOO_LARGE as error:
        raise ValueError(f"an image of more than {MAX_PIXELS:,} pixels") from error
    except _RAISED as error:
        raise ValueError(f"not a readable {' or '.join(formats)}") from error
