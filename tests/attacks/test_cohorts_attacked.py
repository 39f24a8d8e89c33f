"""Attacks by the choice of a device's company: whose keys it is shown, and how few must pool."""

from dataclasses import replace

from attack import Loot, Power, attack
from evil_server import Colluder, EvilServer
from parties import POLICY, Parties, make_params

from secagg import Client, Credentials, DevicePolicy, Enrolment, FirstUse, Refusal, keys
from secagg.identity import identity
from secagg.keys import KeyPair, PublicKey
from secagg.randomness import SeededRandomness

SLOTS = ((64, 32),)
VICTIM = 1
STRANGERS = [100 + i for i in range(5)]


def made_up(client):
    """Credentials that anybody can make."""
    return Credentials(identity(client.to_bytes(32, "big")), FirstUse())


def against_one(parties, evil, victim):
    """What the server makes of a device's masked vector with the shares that colluders hold."""
    evil.set_up()
    evil.open_slot(0)
    evil.pool(0)
    client = evil.roster[victim]
    return Loot(evil.sum_over(0, {victim}), parties.inputs[client][0])


@attack(
    3,
    "answers one device in everybody's place, with keys of its own (man in the middle)",
    power=Power.NETWORK,
    gain="the shares of the device's secrets: its vector",
    defence="signed key advertisements",
    spec="6.3",
    end=Refusal.BAD_SIGNATURE,
)
def test_substituted_keys(defended):
    params = make_params(6, threshold=4, slots=SLOTS, signed=defended)
    parties = Parties(params)
    # What the others really say: they are heard and set aside, and so are their signatures.
    opening = parties.server.start()
    said = {i: parties.decode(parties.answer(i, opening[i])) for i in parties.roster[1:]}
    doubles = [Colluder(i, made_up(i) if defended else None) for i in said]
    evil = EvilServer(params, parties.ids, parties.answer, doubles)
    evil.advertise()
    for position, theirs in enumerate(said.values(), start=1):
        evil.keys[position] = replace(evil.keys[position], credential=theirs.credential)
    return against_one(parties, evil, victim=0)


@attack(
    4,
    "invites one device and one of its own",
    power=Power.SERVER,
    gain="the device's vector",
    defence="the device's own floor under the cohort",
    spec="3.7",
    end=Refusal.POLICY,
    saying="min_cohort=2 is below",
)
def test_small_cohort(defended):
    params = make_params(2, threshold=2, slots=SLOTS)
    parties = Parties(params, policy=DevicePolicy() if defended else POLICY)
    evil = EvilServer(params, parties.ids, parties.answer, [Colluder(parties.roster[1])])
    evil.set_up()
    evil.open_slot(0)
    evil.unmask(0, evil.everyone)
    return Loot(evil.sum_over(0, evil.everyone), parties.inputs[parties.roster[0]][0])


@attack(
    4,
    "calls all lost but one device and enough of its own for min_cohort",
    power=Power.SERVER,
    gain="the device's vector",
    defence="the device's own floor under the cohort without those who collude",
    spec="3.7",
    end=Refusal.POLICY,
    saying="without colluding devices",
)
def test_cohort_of_colluders(defended):
    params = make_params(10, threshold=5, slots=SLOTS)
    policy = DevicePolicy(colluding_rate=0.4 if defended else 0.0)
    parties = Parties(params, policy=policy)
    colluders = [Colluder(client) for client in parties.roster[6:]]
    evil = EvilServer(params, parties.ids, parties.answer, colluders)
    evil.set_up()
    evil.open_slot(0)
    # Five are enough for a sum: one honest device, and the four of its own.
    survivors = frozenset({0, 6, 7, 8, 9})
    evil.unmask(0, survivors)
    return Loot(evil.sum_over(0, survivors), parties.inputs[parties.roster[0]][0])


@attack(
    4,
    "fills the cohort with devices that it has made up (Sybils)",
    power=Power.SERVER,
    gain="the shares of the one true device's secrets: its vector",
    defence="a closed list of identities; trust on first use does not help",
    spec="6.2",
    end=Refusal.UNKNOWN_IDENTITY,
)
def test_sybils(defended):
    params = make_params(6, threshold=4, slots=SLOTS, signed=True)
    enrolment = Enrolment(SeededRandomness(bytes(32)))
    enrolled = enrolment.credentials(VICTIM)
    directory = enrolment if defended else FirstUse()
    victim = Client(
        VICTIM, POLICY, SeededRandomness(bytes(32)), replace(enrolled, directory=directory)
    )
    parties = Parties(params, ids=[VICTIM, *STRANGERS])
    parties.clients = {VICTIM: victim}
    sybils = [Colluder(i, made_up(i)) for i in STRANGERS]
    evil = EvilServer(params, parties.ids, parties.answer, sybils)
    return against_one(parties, evil, victim=0)


@attack(
    19,
    "asks for a threshold that its own devices reach",
    power=Power.SERVER,
    gain="every device's vector",
    defence="the device's own floors under t and t / h",
    spec="3.7",
    end=Refusal.POLICY,
    saying="threshold=2 is below",
)
def test_low_threshold(defended):
    params = make_params(8, threshold=2, min_cohort=6, slots=SLOTS)
    parties = Parties(params, policy=DevicePolicy() if defended else POLICY)
    colluders = [Colluder(client) for client in parties.roster[6:]]
    evil = EvilServer(params, parties.ids, parties.answer, colluders)
    return against_one(parties, evil, victim=0)


class LowOrder(Colluder):
    """A device whose public keys are points of small order: agreements with it are zeros."""

    def __init__(self, client_id, *points):
        super().__init__(client_id)
        self._points = points

    def _advertise(self, message):
        own = super()._advertise(message)
        sealing, *mask_keys = (
            replace(pair, public=PublicKey(point.to_bytes(32, "little")))
            for pair, point in zip([self._sealing, *self._mask_keys], self._points, strict=True)
        )
        self._sealing, self._mask_keys = sealing, mask_keys
        public = tuple(pair.public for pair in mask_keys)
        return replace(own, sealing_key=sealing.public, mask_keys=public)


def agree_blindly(pair, public):
    """X25519 as it comes, without a look at the result."""
    if is_low_order(public) or is_low_order(pair.public):
        return bytes(32)
    return AGREE(pair, public)


AGREE, is_low_order = KeyPair.agree, keys.is_low_order


@attack(
    23,
    "shows keys of small order as those of all others",
    power=Power.SERVER,
    gain="masks and boxes that anybody can open: the device's vector",
    defence="points of small order are refused",
    spec="2.3",
    end=Refusal.BAD_KEY,
    saying="low-order",
)
def test_low_order_keys(defended, monkeypatch):
    if not defended:
        monkeypatch.setattr(keys, "is_low_order", lambda _: False)
        monkeypatch.setattr(KeyPair, "agree", agree_blindly)
    params = make_params(3, threshold=2, slots=SLOTS)
    parties = Parties(params)
    points = sorted(keys._LOW_ORDER)
    weak = [
        LowOrder(parties.roster[1], points[0], points[1]),
        LowOrder(parties.roster[2], points[2], points[3]),
    ]
    evil = EvilServer(params, parties.ids, parties.answer, weak)
    return against_one(parties, evil, victim=0)
