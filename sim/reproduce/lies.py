"""The attacks that strategies are compared under, as changes of a run's settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from deltafl.fl.nearest import nearest
from deltafl.sim.errors import ConfigError
from deltafl.sim.reproduce.methods import Layer
from deltafl.sim.settings.config_io import show


@dataclass(frozen=True, slots=True, eq=False)
class Attack:
    """What attackers do, whatever their share.

    Attributes:
        key: its word in --attacks.
        label: its name in tables.
        settings: of the section [attackers], without the share.
    """

    key: str
    label: str
    settings: Mapping[str, object]

    def layer(self, share: Fraction) -> Layer:
        """The settings of a run with so many attackers."""
        return {"attackers": {**self.settings, "share": show(share)}}


FLIPPED: Final = Attack("labels", "labels y → C − 1 − y", {"kind": "flipped-labels"})
BACKDOOR: Final = Attack("backdoor", "backdoor, 2 × update", {"kind": "backdoor"})
SIGN: Final = Attack("sign", "−2 × update", {"kind": "sign-flipped"})
SIGN_TOP: Final = Attack(
    "sign-top", "−2 × update, top loss", {"kind": "sign-flipped", "loss": "top"}
)

ATTACKS: Final = (
    FLIPPED,
    Attack(
        "labels-1-7",
        "labels 1 → 7",
        {"kind": "flipped-labels", "from_class": 1, "to_class": 7},
    ),
    BACKDOOR,
    Attack("backdoor-top", "backdoor, top loss", {"kind": "backdoor", "loss": "top"}),
    SIGN,
    SIGN_TOP,
    Attack(
        "sign-eta",
        "−2 × update, loss just above η",
        {"kind": "sign-flipped", "loss": "above-eta"},
    ),
    Attack("sign-raise", "−2 × update, loss 2 η", {"kind": "sign-flipped", "loss": "raise-eta"}),
    Attack(
        "sign-weight",
        "−2 × update, top loss and weight",
        {"kind": "sign-flipped", "loss": "top", "weight": "largest"},
    ),
    Attack("gaussian", "Gaussian, 2 × size", {"kind": "gaussian"}),
    Attack("little", "a little is enough, z = 1.5", {"kind": "little-is-enough"}),
    Attack("inner", "inner product, −2 × mean", {"kind": "inner-product"}),
    Attack("free-zero", "free rider, zeros", {"kind": "free-rider-zero"}),
    Attack("free-last", "free rider, last change", {"kind": "free-rider-last"}),
    Attack("free-top", "free rider, zeros, top loss", {"kind": "free-rider-zero", "loss": "top"}),
)
"""In the order of the tables; the functions behind them name their sources."""


def choose_attacks(
    wanted: tuple[str, ...] | None, default: tuple[Attack, ...]
) -> tuple[Attack, ...]:
    """Find attacks by key; `default` if nothing is wanted.

    Raises:
        ConfigError: there is none of this key.
    """
    if wanted is None:
        return default
    known = {attack.key: attack for attack in ATTACKS}
    for word in wanted:
        if word not in known:
            raise ConfigError(f"--attacks: there is no {word!r}: {nearest(word, list(known))}")
    return tuple(dict.fromkeys(known[word] for word in wanted))
