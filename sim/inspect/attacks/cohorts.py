"""Attacks by the choice of a device's cohort: whose keys it sees, and how few devices must pool."""

from dataclasses import replace

from deltafl.secagg import (
    Client,
    ClientId,
    Credentials,
    DevicePolicy,
    FirstUse,
    Refusal,
    UsageError,
    keys,
)
from deltafl.secagg.graph import Graph
from deltafl.secagg.identity import identity
from deltafl.secagg.keys import KeyPair, PublicKey
from deltafl.secagg.messages import AdvertiseKeys, SessionOpen
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.inspect.attacks.attack import Loot, Power, attack
from deltafl.sim.inspect.attacks.evil_server import Colluder, EvilServer
from deltafl.sim.inspect.attacks.own_session import POLICY, Devices, make_params
from deltafl.sim.inspect.attacks.replaced import replaced

_agree, _is_low_order = KeyPair.agree, keys.is_low_order


def _made_up(client: ClientId) -> Credentials:
    """Credentials that anybody can create."""
    return Credentials(identity(client.to_bytes(32, "big")), FirstUse())


def _against_first(devices: Devices, evil: EvilServer) -> Loot:
    """What the server learns about the first device's vector from the shares of the colluders."""
    evil.set_up()
    evil.open_slot(0)
    evil.pool(0)
    return Loot(evil.sum_over(0, {0}), devices.vector(0))


@attack(
    "key-substitution",
    3,
    "answers one device in place of all others, with its own keys (man in the middle)",
    power=Power.NETWORK,
    gain="the shares of the device's secrets, and so its vector",
    defence="signed key advertisements",
    spec="6.3",
    end=Refusal.BAD_SIGNATURE,
)
def key_substitution(defended: bool) -> Loot:
    """The attacker keeps the other devices' real answers to itself, and shows their signatures."""
    params = make_params(6, 4, signed=defended)
    devices = Devices(params)
    opening = devices.encode(SessionOpen(params))
    said = [_keys(devices, client, opening) for client in devices.roster[1:]]
    doubles = [Colluder(i, _made_up(i) if defended else None) for i in devices.roster[1:]]
    evil = EvilServer(params, devices.roster, devices.answer, doubles)
    evil.advertise()
    for position, theirs in enumerate(said, start=1):
        evil.keys[position] = replace(evil.keys[position], credential=theirs.credential)
    return _against_first(devices, evil)


def _keys(devices: Devices, client: ClientId, opening: bytes) -> AdvertiseKeys:
    told = devices.decode(devices.answer(client, opening) or b"")
    if not isinstance(told, AdvertiseKeys):
        raise UsageError(f"{type(told).__name__} for keys")
    return told


@attack(
    "tiny-cohort",
    4,
    "invites only one device and one of its own",
    power=Power.SERVER,
    gain="the device's vector",
    defence="the device's own floor for the cohort size",
    spec="3.7",
    end=Refusal.POLICY,
    saying="min_cohort=2 is below",
)
def tiny_cohort(defended: bool) -> Loot:
    """The sum is over two devices, and one of them sends zeros."""
    params = make_params(2, 2)
    devices = Devices(params, policy=DevicePolicy() if defended else POLICY)
    evil = EvilServer(params, devices.roster, devices.answer, [Colluder(devices.roster[1])])
    evil.set_up()
    evil.open_slot(0)
    evil.unmask(0, evil.everyone)
    return Loot(evil.sum_over(0, evil.everyone), devices.vector(0))


@attack(
    "cohort-of-colluders",
    4,
    "declares all devices dropped out except one and enough of its own for min_cohort",
    power=Power.SERVER,
    gain="the device's vector",
    defence="the device's own floor for the cohort size without colluding devices",
    spec="3.7",
    end=Refusal.POLICY,
    saying="without colluding devices",
)
def cohort_of_colluders(defended: bool) -> Loot:
    """Five devices are enough for a sum: one honest device and the attacker's four."""
    params = make_params(10, 5)
    devices = Devices(params, policy=DevicePolicy(colluding_rate=0.4 if defended else 0.0))
    colluders = [Colluder(client) for client in devices.roster[6:]]
    evil = EvilServer(params, devices.roster, devices.answer, colluders)
    evil.set_up()
    evil.open_slot(0)
    survivors = frozenset({0, 6, 7, 8, 9})
    evil.unmask(0, survivors)
    return Loot(evil.sum_over(0, survivors), devices.vector(0))


@attack(
    "sybils",
    4,
    "fills the cohort with devices that it invented (Sybils)",
    power=Power.SERVER,
    gain="the shares of the only real device's secrets, and so its vector",
    defence="a closed list of identities; trust on first use does not help",
    spec="6.2",
    end=Refusal.UNKNOWN_IDENTITY,
)
def sybils(defended: bool) -> Loot:
    """Without the defence, the device trusts every identity on first use."""
    params = make_params(6, 4, signed=True)
    devices = Devices(params)
    victim, *strangers = devices.roster
    enrolled = devices.enrolment.credentials(victim)
    directory = devices.enrolment if defended else FirstUse()
    randomness = SeededRandomness(bytes(32))
    credentials = replace(enrolled, directory=directory)
    devices.clients = {victim: Client(victim, POLICY, randomness, credentials)}
    made_up = [Colluder(i, _made_up(i)) for i in strangers]
    evil = EvilServer(params, devices.roster, devices.answer, made_up)
    return _against_first(devices, evil)


@attack(
    "low-threshold",
    19,
    "announces a threshold that its own devices reach",
    power=Power.SERVER,
    gain="every device's vector",
    defence="the device's own floors for t and t / h",
    spec="3.7",
    end=Refusal.POLICY,
    saying="threshold=2 is below",
)
def low_threshold(defended: bool) -> Loot:
    """Two of eight devices collude, and two shares are enough to rebuild a secret."""
    params = make_params(8, 2, min_cohort=6)
    devices = Devices(params, policy=DevicePolicy() if defended else POLICY)
    colluders = [Colluder(client) for client in devices.roster[6:]]
    evil = EvilServer(params, devices.roster, devices.answer, colluders)
    return _against_first(devices, evil)


@attack(
    "threshold-within-the-colluding-share",
    19,
    "announces a threshold above the devices' floors, which as many devices reach as may collude",
    power=Power.SERVER,
    gain="every device's vector",
    defence="the device insists that fewer devices may collude than rebuild a secret",
    spec="3.7",
    end=Refusal.POLICY,
    saying="threshold=5 is not above the 8 devices",
)
def threshold_within_the_colluding_share(defended: bool) -> Loot:
    """Devices expect eight of twenty to collude; without the defence, they expect nobody to."""
    params = make_params(20, 5, min_cohort=10)
    devices = Devices(params, policy=DevicePolicy(colluding_rate=0.4 if defended else 0.0))
    colluders = [Colluder(client) for client in devices.roster[12:]]
    evil = EvilServer(params, devices.roster, devices.answer, colluders)
    return _against_first(devices, evil)


@attack(
    "few-neighbours",
    19,
    "announces a sparse graph of so few neighbours that its own devices are half of a device's",
    power=Power.SERVER,
    gain="that device's vector",
    defence="the device works out from its own threat which degree and threshold are enough",
    spec="3.7",
    end=Refusal.POLICY,
    saying="the honest survivors may fall apart",
)
def few_neighbours(defended: bool) -> Loot:
    """Three of forty devices collude; the server has drawn graphs until they met at one device."""
    params = replace(make_params(40, 3, min_cohort=36), degree=6, min_roster=8)
    policy = DevicePolicy()
    if not defended:
        policy = replace(policy, colluding_rate=0.0)
    devices = Devices(params, policy=policy)
    near = Graph(params.num_invited, params.degree, params.graph_seed).neighbours(0).tolist()
    colluders = [Colluder(devices.roster[position]) for position in near[: params.threshold]]
    evil = EvilServer(params, devices.roster, devices.answer, colluders)
    return _against_first(devices, evil)


class _LowOrder(Colluder):
    """A device whose public keys are points of small order: secrets agreed with it are zeros."""

    def __init__(self, client_id: ClientId, sealing: int, mask: int) -> None:
        super().__init__(client_id)
        self._points = sealing, mask

    def _advertise(self, message: SessionOpen) -> AdvertiseKeys:
        super()._advertise(message)
        sealing_key, mask_key = (PublicKey(point.to_bytes(32, "little")) for point in self._points)
        self._sealing = replace(self._own_sealing, public=sealing_key)
        self._mask_keys = [pair and replace(pair, public=mask_key) for pair in self._mask_keys]
        return AdvertiseKeys(sealing_key, (mask_key,))


def _agree_blindly(pair: KeyPair, public: bytes) -> bytes:
    """X25519 without a check of the result."""
    if _is_low_order(public) or _is_low_order(pair.public):
        return bytes(32)
    return _agree(pair, public)


@attack(
    "low-order-keys",
    23,
    "shows keys of small order as the keys of all other devices",
    power=Power.SERVER,
    gain="masks and boxes that anybody can open, and so the device's vector",
    defence="devices refuse points of small order",
    spec="2.3",
    end=Refusal.BAD_KEY,
    saying="low-order",
)
def low_order_keys(defended: bool) -> Loot:
    """There are three devices, and two of them advertise such keys."""
    with (
        replaced(keys, "is_low_order", lambda _: False, unless=defended),
        replaced(KeyPair, "agree", _agree_blindly, unless=defended),
    ):
        params = make_params(3, 2)
        devices = Devices(params)
        points = sorted(keys._LOW_ORDER)
        weak = [
            _LowOrder(devices.roster[1], points[0], points[1]),
            _LowOrder(devices.roster[2], points[2], points[3]),
        ]
        evil = EvilServer(params, devices.roster, devices.answer, weak)
        return _against_first(devices, evil)
