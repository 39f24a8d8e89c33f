"""The curve of RFC 8032 section 5.1 in plain integers."""

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
ROOT_OF_MINUS_ONE = pow(2, (P - 1) // 4, P)
BASE_Y = 4 * pow(5, -1, P) % P
NEUTRAL = (0, 1)

# y-coordinates of the eight points whose order divides 8: orders 1, 2, 4, 8, 8, by both signs of x.
LOW_ORDER_Y = (
    1,
    P - 1,
    0,
    2707385501144840649318225287225658788936804267575313519463743609750303402022,
    55188659117513257062467267217118295137698188065244968500265048394206261417927,
)


def encoded(y, sign=0):
    return (y | sign << 255).to_bytes(32, "little")


def decoded(data):
    """The point of an encoding, canonical or not; None if there is none.

    RFC 8032 section 5.1.3 with one refusal of three.
    """
    value = int.from_bytes(data, "little")
    y, sign = value % 2**255 % P, value >> 255
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * ROOT_OF_MINUS_ONE % P
    if x * x % P != square:
        return None
    return (x if x % 2 == sign else -x % P), y


def add(first, second):
    """The sum of two points in projective coordinates; holds for all points of the curve."""
    (x1, y1, z1), (x2, y2, z2) = first, second
    z, xx, yy = z1 * z2 % P, x1 * x2 % P, y1 * y2 % P
    twist = D * xx * yy % P
    minus, plus = (z * z - twist) % P, (z * z + twist) % P
    x = z * minus * ((x1 + y1) * (x2 + y2) - xx - yy) % P
    return x, z * plus * (yy + xx) % P, minus * plus % P


def affine(point):
    x, y, z = point
    return x * pow(z, -1, P) % P, y * pow(z, -1, P) % P


def times(scalar, point):
    total = (0, 1, 1)
    for bit in bin(scalar)[2:]:
        total = add(total, total)
        total = add(total, (*point, 1)) if bit == "1" else total
    return affine(total)


def affine_sum(points):
    total = (*NEUTRAL, 1)
    for point in points:
        total = add(total, (*point, 1))
    return affine(total)


def compressed(point):
    x, y = point
    return encoded(y, x % 2)


# Eight points, ten encodings: where x is zero, it has two signs, and the negative one is not
# canonical. Nor are the last four, p and p + 1 for 0 and 1; p + (p - 1) does not fit.
LOW_ORDER = [encoded(y, sign) for y in (*LOW_ORDER_Y, P, P + 1) for sign in (0, 1)]
