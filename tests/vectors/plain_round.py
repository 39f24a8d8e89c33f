"""A second reading of rounds (section 12): slow, in Python integers, without a line of `protocol`.

Where the specification says "as a double", this computes with Python's floats.
"""

import math
import struct
from fractions import Fraction
from hashlib import sha256

import plain_twin as plain
from plain_twin import array, pack

PREFIX = b"deltafl/protocol/v3/"


def be64(number):
    return number.to_bytes(8, "big", signed=True)


def digest(label, *parts):
    return sha256(pack(PREFIX + label, *parts)).digest()


# Configurations, layouts, slots.


def max_tick(config):
    return config["bound"] << config["resolution_bits"]


def search_weight(config, weight):
    match config["weighting"]:
        case "samples":
            return weight
        case "powers-of-two":
            return 2 ** (weight.bit_length() - 1) if weight else 0
        case "equal":
            return min(weight, 1)
    raise AssertionError(config["weighting"])


def noise_numbers(variance, devices, num_draws):
    """r, s² and c."""
    bits = 0
    while 4**bits * variance / devices < 4:
        bits += 1
    share = 4**bits * variance / devices
    square = share * (65 + (num_draws - 1).bit_length()) * Fraction(1387, 1000)
    bound = math.isqrt(math.floor(square))
    return bits, share, bound if bound * bound >= square else bound + 1


def num_pivots(config):
    default = {"histogram": 64, "noisy": 16}.get(config["method"], 1)
    return default if config["num_pivots"] is None else config["num_pivots"]


def _bits_of(field, cohort):
    low, high = cohort * min(0, field[2]), cohort * max(0, field[3])
    if low < 0:
        return max((-low - 1).bit_length(), high.bit_length()) + 1
    return max(high.bit_length(), 1)


def _field(name, size, low, high, resolution):
    scale = 2**resolution
    return name, size, round(Fraction(low) * scale), round(Fraction(high) * scale), resolution


def search_layout(config):
    """The fields (name, size, lo, hi, f) of an answer, and the ring bits."""
    most, pivots, cohort = (
        search_weight(config, config["max_weight"]),
        num_pivots(config),
        config["cohort_size"],
    )
    match config["method"]:
        case "mm":
            beta = 2 * most / max(1, 2 * config["epsilon_ticks"])
            fields = [
                _field("beta", 1, 0, beta, max_tick(config).bit_length() + 4),
                _field("signed_weight", 1, -most, most, 0),
                _field("weight", 1, 0, most, 0),
                _field("count", 1, 0, 1, 0),
                _field("count_below", 1, 0, 1, 0),
            ]
        case "bracketed" | "histogram":
            fields = [
                _field("weight", 1, 0, most, 0),
                _field("count", 1, 0, 1, 0),
                _field("weight_below", pivots, 0, most, 0),
                _field("count_below", pivots, 0, 1, 0),
            ]
        case "noisy":
            numerator, denominator, devices = config["noise"]
            variance = Fraction(numerator, denominator)
            bits, _, bound = noise_numbers(variance, devices, (pivots + 1) * cohort)
            fields = [
                _field("count", 1, 0, 1, 0),
                ("bins", pivots + 1, -bound, 2**bits + bound, bits),
            ]
    needed = max(_bits_of(field, cohort) for field in fields)
    if config["verified"]:
        needed += 1
    return fields, needed


def update_layout(config):
    heaviest, length, cohort = config["max_weight"], config["update_length"], config["cohort_size"]
    bound, clip = config["bound"], config["update_clip"] * heaviest
    update = _field("update", length, -clip, clip, config["update_resolution_bits"])
    coarse = _field("weighted_loss", 1, 0, heaviest * bound, 0)
    spare = min(_bits_of(update, cohort), 63) - _bits_of(coarse, cohort)
    spare = min(max(spare, 0), 53 - (heaviest * bound).bit_length(), config["resolution_bits"])
    fields = [
        update,
        _field("weight", 1, 0, heaviest, 0),
        _field("weighted_loss", 1, 0, heaviest * bound, spare),
        _field("count", 1, 0, 1, 0),
        _field("clipped", 1, 0, length + 2, 0),
    ]
    return fields, max(_bits_of(field, cohort) for field in fields)


def length_of(fields):
    return sum(field[1] for field in fields)


def num_queries(config):
    searched = config["theta"][0] != config["theta"][1]
    enough = config["cohort_size"] >= config["min_search_cohort"]
    return config["max_queries"] if searched and enough else 0


def slots(config):
    listed = []
    search, search_bits = search_layout(config)
    for index in range(num_queries(config)):
        listed.append(
            {
                "label": "quantile",
                "length": length_of(search),
                "ring_bits": search_bits,
                "whole": index > 0 or config["min_search_cohort"] > 0,
                "verified": config["verified"],
            }
        )
    update, update_bits = update_layout(config)
    last = {"label": "update", "length": length_of(update), "ring_bits": update_bits}
    return [*listed, {**last, "whole": False, "verified": False}]


def _warm(config):
    return 0 if config["warm_start"] is None else config["warm_start"] + 1


def described(config):
    """The fields of a configuration, in their order."""
    return [
        int(config["round_index"]),
        config["cohort_size"],
        *config["theta"],
        config["method"].encode(),
        config["max_queries"],
        config["resolution_bits"],
        config["bound"],
        config["weighting"].encode(),
        config["epsilon_ticks"],
        config["min_search_cohort"],
        int(config["verified"]),
        struct.pack("<d", config["update_clip"]),
        config["update_resolution_bits"],
        config["max_weight"],
        0,
        b"",
        config["update_length"],
        _warm(config),
        config["num_pivots"] or 0,
        *(config["noise"] or (0, 0, 0)),
        config["min_tail"],
    ]


def canonical(config):
    return array(*described(config))


def context(levels, models):
    return digest(b"round context", *map(canonical, levels), sha256(models).digest())


def ledger_entry(model):
    return digest(b"model that was answered for", model)


def question_bytes(question):
    if question["what"] == "Threshold":
        return plain.threshold_bytes(int(question["eta"]), int(question["delta"]))
    return plain.query_bytes(question["method"].encode(), question["pivots"])


def binding(round_context, question):
    return plain.binding(round_context, question["what"], question_bytes(question))


# Envelopes.


def announce(levels, models, session):
    others = b"".join(struct.pack("<IIQ", *one["theta"], _warm(one)) for one in levels[1:])
    return array(3, 0x21, *described(levels[0]), others, session, models)


def relay(session):
    return array(3, 0x22, session)


def ask(question, opening, session):
    if question["what"] == "Threshold":
        return array(3, 0x24, int(question["eta"]), int(question["delta"]), opening, session)
    pivots = b"".join(struct.pack("<Q", pivot) for pivot in question["pivots"])
    return array(3, 0x23, question["method"].encode(), pivots, opening, session)


# A device's answers.


def tick(resolution_bits, bound, loss):
    exact = round(Fraction(loss) * 2**resolution_bits)
    bounded = min(max(exact, 0), bound << resolution_bits)
    return bounded, bounded != exact


def encode(layout, values):
    """Elements modulo 2^b of numbers that are already doubles or integers, times 2^f."""
    fields, bits = layout
    elements = []
    for name, size, low, high, resolution in fields:
        numbers = values[name]
        assert len(numbers) == size
        for number in numbers:
            scaled = float(number) * 2.0**resolution
            rounded = (high if scaled > 0 else low) if math.isinf(scaled) else round(scaled)
            elements.append(min(max(rounded, low), high) % 2**bits)
    return elements


def answer(config, own_tick, weight, pivots, share=None):
    """What a device of this loss and weight (as it enters the search) adds to a query's sum."""
    layout = search_layout(config)
    one = int(weight > 0)
    below = [int(own_tick < pivot) for pivot in pivots]
    match config["method"]:
        case "mm":
            half_ticks = 2 * (own_tick - pivots[0]) + 1
            beta = 2 * weight / max(abs(half_ticks), 2 * config["epsilon_ticks"])
            values = {
                "beta": [beta],
                "signed_weight": [weight if half_ticks > 0 else -weight],
                "weight": [weight],
                "count": [one],
                "count_below": [one * there for there in below],
            }
        case "bracketed" | "histogram":
            values = {
                "weight": [weight],
                "count": [one],
                "weight_below": [weight * there for there in below],
                "count_below": [one * there for there in below],
            }
        case "noisy":
            own = sum(pivot <= own_tick for pivot in pivots)
            steps = 2 ** layout[0][1][4]
            bins = [int(i == own) + Fraction(x, steps) for i, x in enumerate(share)]
            values = {"count": [1], "bins": bins}
    return encode(layout, values)


def passes(own_tick, question):
    return 2 * own_tick >= int(question["eta"]) - int(question["delta"])


def update(config, loss, weight, elements):
    """What a device that passes adds to the update; elements are those of its update."""
    own_tick, clipped = tick(config["resolution_bits"], config["bound"], loss)
    heaviest, clip = config["max_weight"], config["update_clip"]
    own_weight = min(weight, heaviest)
    bounded = [min(max(x, -clip), clip) for x in elements]
    num_clipped = int(clipped) + int(own_weight != weight)
    num_clipped += sum(a != b for a, b in zip(bounded, elements, strict=True))
    return encode(
        update_layout(config),
        {
            "update": [x * float(own_weight) for x in bounded],
            "weight": [own_weight],
            "weighted_loss": [own_weight * (own_tick / 2 ** config["resolution_bits"])],
            "count": [1],
            "clipped": [num_clipped],
        },
    )


def decode(layout, elements):
    """The sums of each field."""
    fields, bits = layout
    sums, at = {}, 0
    for name, size, low, _, _ in fields:
        part = elements[at : at + size]
        sums[name] = [plain.two_s_complement(x, bits) if low < 0 else x for x in part]
        at += size
    return sums


# A search that devices follow.


def _inside(pivot, low, high):
    return min(max(pivot, low + 1), high - 1)


def nearest_power(first, ratio, step, steps):
    """The integer nearest to first·ratio^(step / steps), ties to even, by integers alone."""
    power = Fraction(first) ** steps * Fraction(ratio) ** step
    low, high = 0, 1
    while Fraction(2 * high - 1, 2) ** steps < power:
        high *= 2
    while high - low > 1:  # the integer is at least low and below high
        middle = (low + high) // 2
        low, high = (
            (middle, high) if Fraction(2 * middle - 1, 2) ** steps < power else (low, middle)
        )
    is_tie = Fraction(2 * low + 1, 2) ** steps == power
    return low + low % 2 if is_tie else low


def _guarded(pivot, low, high, left):
    half = 2 ** (left - 1)
    if high - low <= 2 * half:
        pivot = min(max(pivot, high - half), low + half)
    return _inside(pivot, low, high)


class PlainSearch:
    """A search by `mm`, `bracketed` or `histogram`: `pivots` is what to ask, None at the end.

    Ranks are (pivot, weight below, devices below).
    """

    def __init__(self, config):
        self.config, self.top = config, max_tick(config) + 1
        self.theta = Fraction(*config["theta"])
        self.answered, self.side, self.run = 0, 0, 0
        self.low = self.high = self.total = None
        self.safe, self.least = [], max(config["min_tail"], 1)
        self.searched, self.estimate, self.sure = 0, 0, 0  # of `noisy`
        start = config["warm_start"]
        if config["method"] == "noisy" or num_pivots(config) > 1:
            pivots = self._ladder()
        else:
            first = tick(config["resolution_bits"], config["bound"], 1.0)[0]
            left = max(config["max_queries"], 1)
            pivots = [_guarded(first if start is None else start, 0, self.top, left)]
        self._next = pivots

    @property
    def ended(self):
        if self.theta == 1:
            return "exact"
        if self.config["method"] == "noisy":
            return ("noisy" if self.searched else "no weight") if self.answered else None
        if self.low is None:
            return None
        if self.total[1] == 0:
            return "no weight"
        if self.total[2] < self.least:
            return "too few"
        one_tick, one_device = (self.high[i] - self.low[i] == 1 for i in (0, 2))
        if not (one_tick or one_device):
            return None
        if self.high[1] < (1 - self.theta) * self.total[1]:
            return "widened"
        return "exact" if one_tick else "last device"

    @property
    def pivots(self):
        over = self.ended is not None or self.answered >= self.config["max_queries"]
        return None if over else self._next

    def take(self, elements):
        """Go on with the sum that answers the question."""
        sums = decode(search_layout(self.config), elements)
        if self.config["method"] == "noisy":
            return self._take_counts(sums["count"][0], sums["bins"])
        weight, count = sums["weight"][0], sums["count"][0]
        total = (self.top, weight, count)
        if self.config["method"] == "mm":
            below = [(weight - sums["signed_weight"][0]) // 2]
        else:
            below = sums["weight_below"]
        ranks = list(zip(self._next, below, sums["count_below"], strict=True))
        if self.low is None:
            self.low, self.high, self.total = (0, 0, 0), total, total
            self.safe = [self.low]
        assert total == self.total
        before = self.low, self.high
        target = (1 - self.theta) * weight
        for rank in ranks:
            if rank[1] >= target or count - rank[2] < self.least:
                self.high = rank
                break
            self.low = rank
            self.safe.append(rank)
        side = int(self.low != before[0]) - int(self.high != before[1])
        self.run = self.run + 1 if side == self.side else 0
        self.side = side
        self.answered += 1
        if self.ended is None and self.answered < self.config["max_queries"]:
            self._propose(sums, target)
        return None

    def _take_counts(self, total, bins):
        """The nearest counts that are possible, and where they reach the rank of the quantile."""
        self.answered += 1
        steps = 2 ** search_layout(self.config)[0][1][4]
        noisy = [Fraction(number, steps) for number in bins]
        left, excess = list(noisy), Fraction(0)
        while total:  # whatever is not above the excess is zero, and its share is on the others
            excess = (sum(left) - total) / len(left)
            above = [number for number in left if number > excess]
            if len(above) == len(left):
                break
            left = above
        self.searched = total
        if total:
            counts = [max(number - excess, Fraction(0)) for number in noisy]
            self.estimate = self._crossing(counts)
            self._widen(noisy)

    def _crossing(self, counts):
        wanted = math.ceil((1 - self.theta) * sum(counts)) - 1
        ends, below = [0, *self._next, self.top], Fraction(0)
        for index, count in enumerate(counts):
            if wanted > 0 and below + count >= wanted:
                low, high = ends[index : index + 2]
                return low + math.floor((high - low) * (wanted - below) / count)
            below += count
        return 0

    def _widen(self, noisy):
        """Lower the estimate to where enough devices are above for sure; how many are."""
        numerator, denominator, devices = self.config["noise"]
        each = Fraction(numerator, denominator) / devices * self.searched
        surely = {0: self.searched}
        for place, pivot in enumerate(self._next):
            margin = Fraction(4 * math.sqrt(each * (len(self._next) - place)))
            counted = max(math.floor(sum(noisy[place + 1 :]) - margin), 0)
            surely[pivot] = max(counted, surely.get(pivot, 0)) if pivot else self.searched
        if self.config["min_tail"]:
            enough = [pivot for pivot, n in surely.items() if n >= self.config["min_tail"]]
            self.estimate = min(self.estimate, max(enough, default=0))
        self.sure = max((n for pivot, n in surely.items() if pivot >= self.estimate), default=0)

    def _propose(self, sums, target):
        config, low_rank, high_rank = self.config, self.low, self.high
        (low, below, _), (high, above, _) = low_rank, high_rank
        width, weight = high - low, self.total[1]
        left = config["max_queries"] - self.answered
        inner = above - below
        match config["method"]:
            case "mm":
                (pivot,) = self._next
                bits = max_tick(config).bit_length() + 4
                beta = Fraction(sums["beta"][0], 2**bits)
                pull = sums["signed_weight"][0] + (1 - 2 * self.theta) * weight
                least = Fraction(weight, 2 * config["cohort_size"])
                step = self.side * max(abs(pull), least) * 2**self.run / beta
                following = round(pivot + step)
                if width <= 2 * config["epsilon_ticks"]:
                    following = (low + high) // 2
                self._next = [_guarded(following, low, high, left)]
            case "bracketed" | "histogram" if num_pivots(config) == 1:
                if low == 0 or high == self.top:
                    following = self._outward(target)
                else:
                    devices = high_rank[2] - low_rank[2]
                    following = low + round(width * self._fraction(target, inner, devices))
                self._next = [_guarded(following, low, high, left)]
            case "histogram":
                parts = num_pivots(config) + 1
                even = [low + width * part // parts for part in range(1, parts)]
                self._next = self._filled(even, low, high)

    def _outward(self, target):
        from_low = self.low[0] > 0
        pivot, weight, _ = self.low if from_low else self.high
        beyond = (self.low if from_low else self.high)[2] - (self.total[2] - self.least)
        missing = (target - weight) / self.total[1], Fraction(-beyond, self.total[2])
        missing = min(missing) if from_low else max(-x for x in missing)
        relative = max(float(missing) / 0.7, 1 / 64) * 2.0 ** (self.run + 1)
        return round(pivot * (1 + relative if from_low else 1 / (1 + relative)))

    def _fraction(self, target, inner, devices):
        by_count = (self.total[2] - self.least - self.low[2] + Fraction(1, 2)) / devices
        by_weight = (target - self.low[1]) / inner if inner else by_count
        fraction = float(min(by_count, by_weight))
        place = (fraction * devices + 0.5) / (devices + 1)
        deviation = math.sqrt(place * (1 - place) / (devices + 2))
        return min(place + deviation, 0.5) if place < 0.5 else max(place - deviation, 0.5)

    def _ladder(self):
        top, number = self.top - 1, num_pivots(self.config)
        start = self.config["warm_start"]
        if not start:
            steps = [nearest_power(1, top, i, number + 1) for i in range(1, number + 1)]
            return self._filled(steps, 0, self.top)
        up = (number + 1) // 2
        down, finest = number - up, Fraction(start, 256)
        ratio = max((top - start) / finest, Fraction(1))
        steps = [start + nearest_power(finest, ratio, i, up) for i in range(up)]
        steps += [start - nearest_power(finest, 256, i, down) for i in range(down)]
        return self._filled(steps, 0, self.top)

    def _filled(self, pivots, low, high):
        different = sorted({_inside(pivot, low, high) for pivot in pivots})
        return different + different[-1:] * (num_pivots(self.config) - len(different))

    def _known(self, lost):
        """The rank of the pivot that is announced once so many are gone."""
        enough = [rank for rank in self.safe if self.total[2] - rank[2] - lost >= self.least]
        low = enough[-1] if enough else self.safe[0]
        if self.config["verified"] or self.ended is not None:
            return low
        target = (1 - self.theta) * self.total[1]
        if self.total[2] - self.high[2] - lost < self.least:
            return low
        return self.high if self.high[1] - target < target - low[1] else low

    def threshold(self, lost=0):
        """η and δ, and whether they are certified, if the search ended now."""
        ended = self.ended
        certified = ended in ("exact", "last device")
        if self.config["method"] == "noisy":
            eta, delta = 2 * self.estimate, 0
        elif ended in ("no weight", "too few") or self.theta == 1 or self.low is None:
            eta, delta = 0, 0
        elif ended is not None and self._known(lost) == self.low:
            eta, delta = self.low[0] + self.high[0] - 1, self.high[0] - 1 - self.low[0]
        else:
            eta, delta, certified = 2 * self._known(lost)[0], 0, False
        return {"what": "Threshold", "eta": eta, "delta": delta}, certified

    def tail(self, lost=0):
        if self.config["method"] == "noisy":
            return {"fewest": self.sure, "most": self.searched} if self.answered else None
        if self.low is None:
            return None
        below = 0 if self.ended in ("no weight", "too few") else self._known(lost)[2]
        return dict.fromkeys(("fewest", "most"), self.total[2] - below)


# A whole round.


class PlainRound:
    """Plays the questions that a vector states; `rounds` and `sums` are what comes out."""

    def __init__(self, case):
        self.case, self.levels = case, case["levels"]
        self.models = bytes.fromhex(case["models"])
        self.context = context(self.levels, self.models)
        self.first = [0]
        for config in self.levels:
            self.first.append(self.first[-1] + num_queries(config) + 1)

    def level_of(self, slot):
        return max(level for level, first in enumerate(self.first[:-1]) if first <= slot)

    def vector(self, device, question):
        level = self.level_of(question["slot"])
        config, loss = self.levels[level], device["losses"][level]
        own_tick, _ = tick(config["resolution_bits"], config["bound"], loss)
        if question["what"] == "Query":
            weight = search_weight(config, min(device["weight"], config["max_weight"]))
            share = [int(x) for x in device.get("noise_share", ())]
            return answer(config, own_tick, weight, question["pivots"], share)
        if not passes(own_tick, question):
            return [0] * length_of(update_layout(config)[0])
        return update(config, loss, device["weight"], device["updates"][level])

    def run(self):
        questions = {one["slot"]: one for one in self.case["questions"]}
        last = self.first[-1]
        devices = [
            device
            | {
                "inputs": [
                    self.vector(device, questions[slot]) if slot in questions else None
                    for slot in range(last)
                ]
            }
            for device in self.case["devices"]
        ]
        bindings = [
            binding(self.context, questions[slot]).hex() if slot in questions else ""
            for slot in range(last)
        ]
        session = plain.PlainSession(
            {
                "params": self.case["params"],
                "devices": devices,
                "bindings": bindings,
                "vanishing": self.case["vanishing"],
                "spoiling": [],
                "asked": sorted(questions),
            }
        ).run()
        self.session, self.sums, self.drops = session, session.sums, session.drops
        self.rounds, opening = [], b""
        for one in session.rounds:
            stage, slot = one["stage"], one["slot"]
            if stage == "opening":
                opening = next(iter(one["to"].values()))
                continue
            wrapped = {
                client: self._wrapped(stage, questions.get(slot), opening, data)
                for client, data in one["to"].items()
            }
            if stage == "mask":
                opening = b""
            self.rounds.append({**one, "to": wrapped})
        return self

    def _wrapped(self, stage, question, opening, data):
        if stage == "advertise":
            return announce(self.levels, self.models, data)
        return ask(question, opening, data) if stage == "mask" else relay(data)

    def questions(self, lost):
        """What the server has to ask, level by level, with the sums that it has got.

        Args:
            lost: Devices in the last sum of a search of one level that are gone before the update.
        """
        by_slot = {one["slot"]: one for one in self.sums}
        found, tails = [], []
        for level, config in enumerate(self.levels):
            search, slot = PlainSearch(config), self.first[level]
            while search.pivots is not None:
                query = {"what": "Query", "method": config["method"], "pivots": search.pivots}
                found.append({"slot": slot, **query})
                if slot not in by_slot:
                    break
                search.take(by_slot[slot]["vector"])
                slot += 1
            found.append({"slot": self.first[level + 1] - 1, **search.threshold(lost)[0]})
            followed = all(one["verified"] or not num_queries(one) for one in self.levels)
            tails.append(search.tail(lost) if followed else None)
        return found, tails
