/* Whom the server drops after the receipts (spec 10.6): `bad_receipt` and `bad_box`.
 *
 * `refused[d]` are the devices whose boxes d refused, `present` those that are still there.
 */
#define REFUSED(d, p) (IN(p, refused[d]) << (d))
#if N <= 4
#define REFUSERS(p) (REFUSED(0, p) | REFUSED(1, p) | REFUSED(2, p) | REFUSED(3, p))
#else
#define REFUSERS(p) (REFUSED(0, p) | REFUSED(1, p) | REFUSED(2, p) | REFUSED(3, p) | REFUSED(4, p) | REFUSED(5, p))
#endif
#ifdef BROKEN_ONE_COMPLAINT   /* one complaint is enough, as if it could be judged */
#define LACKS_HOLDERS(refusers) ((refusers) != 0)
#else
#define LACKS_HOLDERS(refusers) ((refusers) != 0 && SIZE(believed & ~(refusers)) < T)
#endif
#ifdef BROKEN_SMALL_COHORT    /* judges although too few devices are left for the session */
#define CAN_JUDGE(present) true
#else
#define CAN_JUDGE(present) (SIZE(present) >= MIN_COHORT)
#endif

byte refused[N];
byte bad_receipt, bad_box;
hidden byte a, believed;

inline judge(present)
{
    d_step {
        bad_receipt = 0; bad_box = 0; a = 0;
        do
        :: a < N ->   /* refused the boxes of more than half of its remaining neighbours */
            if
            :: CAN_JUDGE(present) && IN(a, present) && 2 * SIZE(refused[a] & (present)) > SIZE((present) & ~ONE(a)) ->
                bad_receipt = bad_receipt | ONE(a)
            :: else
            fi;
            a++
        :: else -> break
        od;
        believed = (present) & ~bad_receipt; a = 0;
        do
        :: a < N ->   /* so many of the rest refused it that fewer than t hold its shares */
            if
            :: CAN_JUDGE(present) && IN(a, believed) && LACKS_HOLDERS(REFUSERS(a) & believed) -> bad_box = bad_box | ONE(a)
            :: else
            fi;
            a++
        :: else -> break
        od;
        a = 0; believed = 0
    }
}
