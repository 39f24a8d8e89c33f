/* Both kinds of share: one tolerant slot, and nobody looks at signatures (spec 9.6, 9.7, 9.9).
 *
 * The server says anything to any device at any time: any sets, different ones for everybody,
 * boxes spoilt, any order, repetitions, silence. Only the thresholds and what devices refuse keep
 * it from getting t shares of a device's seed and t shares of its recovery key (spec 14.3). A device
 * that refuses a message does nothing more, just as one that gets none; so refusing needs no state.
 */
#include "common.pml"

mtype = { SHARED, LINKED, READY, OPENED, MASKED, CONFIRMED };
mtype state[HONEST] = SHARED;
byte members[HONEST] = ALL;
byte heard[HONEST] = ALL;
byte opened[HONEST];
bool answered[HONEST];

/* Who has given a share of the owner's seed, and of its recovery key. Colluding holders give both. */
byte seed_from[HONEST];
byte key_from[HONEST];
#define SEED_KNOWN(p) (SIZE(seed_from[p]) + COLLUDING >= T)
#define KEY_KNOWN(p) (SIZE(key_from[p]) + COLLUDING >= T)
hidden byte p;
hidden byte one_kind;

inline give_shares(d, survivors)
{
    d_step {
        p = 0;
        do
        :: p < HONEST ->
            if
            :: IN(p, opened[d] & heard[d]) && IN(p, survivors) -> seed_from[p] = seed_from[p] | ONE(d)
            :: IN(p, opened[d] & heard[d]) && !IN(p, survivors) -> key_from[p] = key_from[p] | ONE(d)
            :: else
            fi;
            MUST(one_kind, !(SEED_KNOWN(p) && KEY_KNOWN(p)));
            p++
        :: else -> break
        od;
        GETS_TO(SEED_KNOWN(0) && KEY_KNOWN(1));
        p = 0
    }
}

/* Those that show no tag, or a wrong one (spec 9.7). */
#define MAY_BE_UNREAD(boxes) (SUBSET(boxes, set & ~ONE(_pid)) && ENOUGH(set & ~(boxes)))

active [HONEST] proctype Device()
{
    byte set, unread;
end:
    do
    :: atomic {
        state[_pid] == SHARED -> CHOOSE(set, FIT);
        members[_pid] = set;
        MOVE(_pid, SHARED, ShareDelivery, LINKED); set = 0
      }
    :: atomic {
        state[_pid] == LINKED -> CHOOSE(set, FIT); CHOOSE(unread, MAY_BE_UNREAD);
        heard[_pid] = ALL & ~unread;
        members[_pid] = set; opened[_pid] = set;
        MOVE(_pid, LINKED, OpenSlot, OPENED); set = 0; unread = 0
      }
    :: atomic { state[_pid] == OPENED -> MOVE(_pid, OPENED, Contribute, MASKED) }
    :: atomic {
        state[_pid] == MASKED -> CHOOSE(set, FIT);
        members[_pid] = set;
        MOVE(_pid, MASKED, ConsistencyCheck, CONFIRMED); set = 0
      }
    :: atomic {
        state[_pid] == CONFIRMED ->
        set = members[_pid];
        give_shares(_pid, set);
        answered[_pid] = true;
        MOVE(_pid, CONFIRMED, UnmaskRequest, READY); set = 0
      }
#ifdef BROKEN_TWICE   /* answers a second request for the slot (spec 9.3: BOTH_SHARE_KINDS) */
    :: atomic {
        state[_pid] == READY && answered[_pid] -> CHOOSE(set, FIT);
        members[_pid] = set;
        give_shares(_pid, set); set = 0
      }
#endif
    od;
end_refused: false
}
