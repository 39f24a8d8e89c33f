"""What is known of the data of a run before it begins: all of it, or only what settings tell."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownData:
    """What settings are held against; None for what is not known yet, of which nothing is said.

    Attributes:
        name: of the data.
        num_devices: how many devices train.
        num_classes: of the labels; 0 if targets are numbers.
        input_shape: of one sample.
        is_tokens: whether samples are made of tokens.
        rule: by which devices were kept, in brackets after the name; or "".
    """

    name: str
    num_devices: int | None = None
    num_classes: int | None = None
    input_shape: tuple[int, ...] | None = None
    is_tokens: bool | None = None
    rule: str = ""
