/* Sizes, sets of devices, and moves by a table: what all models share.
 *
 * A set of devices is a number: device d is in it if bit d is 1. Devices 0 to HONEST - 1 follow
 * docs/spec.md, section 9. The others collude with the server: they sign whatever it likes, and
 * give it every share that they hold, of both kinds.
 */

#ifndef N
#define N 4           /* devices in the roster, all of them holders: the complete graph */
#endif
#ifndef COLLUDING
#define COLLUDING 1   /* c */
#endif
#ifndef T
#define T 3           /* the threshold t, with 2t > n + c (spec 14.2) */
#endif
#ifndef MIN_COHORT
#define MIN_COHORT 3
#endif

#define HONEST (N - COLLUDING)
#define ALL ((1 << N) - 1)
#define IN(d, set) (((set) >> (d)) & 1)
#define ONE(d) (1 << (d))
#define SIZE(set) (IN(0, set) + IN(1, set) + IN(2, set) + IN(3, set) + IN(4, set) + IN(5, set))
#define SUBSET(part, set) (((part) & ~(set)) == 0)
#define COLLUDERS (ALL & ~((1 << HONEST) - 1))

/* Any set that is fit: the server's choice, among those that the device does not refuse. If there
 * is none, the device can only refuse, and its session is over. */
#define FOUR(set, FIT, s) :: FIT(s) -> set = s :: FIT(s + 1) -> set = s + 1 \
    :: FIT(s + 2) -> set = s + 2 :: FIT(s + 3) -> set = s + 3
#define SIXTEEN(set, FIT, s) FOUR(set, FIT, s) FOUR(set, FIT, s + 4) FOUR(set, FIT, s + 8) FOUR(set, FIT, s + 12)
#if N <= 4
#define CHOOSE(set, FIT) if SIXTEEN(set, FIT, 0) :: else -> goto end_refused fi
#else
#define CHOOSE(set, FIT) if SIXTEEN(set, FIT, 0) SIXTEEN(set, FIT, 16) SIXTEEN(set, FIT, 32) SIXTEEN(set, FIT, 48) :: else -> goto end_refused fi
#endif

/* A property, by its name: what Spin says when it is violated. */
#define MUST(name, holds) name = (holds); assert(name)

/* With REACH, Spin has to find a state in which this holds: the model gets there. */
#ifdef REACH
#define GETS_TO(holds) unreached = !(holds); assert(unreached)
hidden byte unreached;
#else
#define GETS_TO(holds) skip
#endif

/* A move by the table of spec 9.1. A test reads these lines and compares them with the code's. */
#ifndef MOVE
#define MOVE(d, from, event, to) assert(state[d] == from); state[d] = to
#endif

/* The checks of spec 9.4 on a set that the server names for device d. `members` is its cohort so
 * far and `heard` are those that it is linked with, and itself. On the complete graph all devices are
 * holders, so that rule 5 counts the same devices as rule 4. */
#ifdef BROKEN_GREW     /* without rule 2: devices that had left may be back */
#define SHRINKS(d, set) true
#else
#define SHRINKS(d, set) SUBSET(set, members[d])
#endif
#ifdef BROKEN_SMALL    /* without rules 4 and 5: a cohort may be as small as the server likes */
#define ENOUGH(counted) true
#else
#define ENOUGH(counted) (SIZE(counted) >= MIN_COHORT && SIZE(counted) >= T)
#endif
#define PASSES(d, set) (SHRINKS(d, set) && IN(d, set) && ENOUGH((set) & heard[d]))
#define FIT(set) PASSES(_pid, set)
