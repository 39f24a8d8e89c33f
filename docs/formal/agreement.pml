/* One list, one sum, enough devices: one tolerant slot (spec 9.7 to 9.9).
 *
 * The server says anything, as in unmasking.pml, but cannot sign for honest devices. What it can
 * compute is worked out from shares and vectors: `look` finds each set of honest devices whose sum
 * it has. A vector of p holds p's self mask, and a mask for each device that p's slot was opened with.
 * The self mask goes with p's seed, a mask of two honest devices goes with the recovery key of either,
 * or cancels if both vectors are in the sum; masks with colluding devices are known.
 */
#include "common.pml"

mtype = { SHARED, LINKED, READY, OPENED, MASKED, CONFIRMED };
#ifdef SEQUENTIAL   /* the cohort is the roster: the slot is open, and only what follows is played */
mtype state[HONEST] = OPENED;
#else
mtype state[HONEST] = SHARED;
#endif
byte members[HONEST] = ALL;
byte heard[HONEST] = ALL;
byte opened[HONEST];
byte listed[HONEST];      /* the list that the device signed; 0 for none */
byte revealed[HONEST];    /* the list that it gave shares for; 0 for none */
#ifdef BROKEN_SIGNS_TWICE
byte before[HONEST];      /* a list that it signed before */
#define SIGNED_IT(q, set) (listed[q] == set || before[q] == set)
#elif defined(BROKEN_OLD_SIGNATURES)   /* signatures of another session count (spec 6.4, 14.2) */
#define SIGNED_IT(q, set) true
#else
#define SIGNED_IT(q, set) (listed[q] == set)
#endif

/* In REPLAYED, device 0 is not there. The server shows keys of an earlier session, in which the
 * device was called lost, so that its recovery key is known. Nobody is linked with it (spec 9.7). */
#ifdef REPLAYED
#define ABSENT 1
#else
#define ABSENT 0
#endif

byte seed_from[HONEST];
byte key_from[HONEST];
#define SEED_KNOWN(p) (SIZE(seed_from[p]) + COLLUDING >= T)
#define KEY_KNOWN(p) (SIZE(key_from[p]) + COLLUDING >= T || (ABSENT && p == 0))

hidden byte p, q, set_of_sum, sums, signers;
hidden byte known, one_kind, one_list, one_sum, large_sum;

#ifndef ANY_LISTS   /* not one_list: look for what a difference of lists leads to */
#define ANY_LISTS false
#endif

/* How many signatures device d counts for a list: of linked holders on the list
 * (spec 9.9, rule 2). The server shows all there are. */
inline count_signers(d, set)
{
    d_step {
        signers = SIZE(set & heard[d] & COLLUDERS);
        q = ABSENT;
        do
        :: q < HONEST ->
            signers = signers + (IN(q, set & heard[d]) && SIGNED_IT(q, set)); q++
        :: else -> break
        od;
        q = 0
    }
}
#ifdef BROKEN_QUORUM   /* without rule 3 of spec 9.9 */
#define QUORUM true
#else
#define QUORUM (signers >= T)
#endif

inline give_shares(d, survivors)
{
    p = 0;
    do
    :: p < HONEST ->
        if
        :: IN(p, opened[d] & heard[d]) && IN(p, survivors) -> seed_from[p] = seed_from[p] | ONE(d)
        :: IN(p, opened[d] & heard[d]) && !IN(p, survivors) -> key_from[p] = key_from[p] | ONE(d)
        :: else
        fi;
        p++
    :: else -> break
    od
}

/* Every set of honest devices whose sum the server has by now. */
inline look()
{
    sums = 0; set_of_sum = 1;
    do
    :: set_of_sum < ONE(HONEST) ->
        known = true; p = ABSENT;
        do
        :: p < HONEST ->
            if
            :: IN(p, set_of_sum) ->
                known = known && opened[p] && SEED_KNOWN(p);
                q = 0;
                do
                :: q < HONEST ->
                    if
                    :: q == p || KEY_KNOWN(p) || KEY_KNOWN(q)
                    :: else ->
                        known = known && IN(q, opened[p]) == (IN(q, set_of_sum) && IN(p, opened[q]));
                        known = known && !(IN(q, set_of_sum) && IN(p, opened[q]) && !IN(q, opened[p]))
                    fi;
                    q++
                :: else -> break
                od
            :: else
            fi;
            p++
        :: else -> break
        od;
        if
        :: known && !(ABSENT && IN(0, set_of_sum)) ->
            sums++;
            MUST(one_sum, sums <= 1);
            MUST(large_sum, SIZE(set_of_sum) + COLLUDING >= MIN_COHORT)
        :: else
        fi;
        set_of_sum++
    :: else -> break
    od;
    known = sums; p = ABSENT;
    do
    :: p < HONEST -> known = known && revealed[p]; p++
    :: else -> break
    od;
    GETS_TO(known);
    p = 0;
    do
    :: p < HONEST ->
        MUST(one_kind, !(SEED_KNOWN(p) && KEY_KNOWN(p)) || (ABSENT && p == 0));
        q = 0;
        do
        :: q < p ->
            MUST(one_list, ANY_LISTS || !revealed[p] || !revealed[q] || revealed[p] == revealed[q]);
            q++
        :: else -> break
        od;
        p++
    :: else -> break
    od;
    p = 0; q = 0; set_of_sum = 0; sums = 0; known = false; signers = 0
}
/* In SEQUENTIAL, every device signs, in the order of their numbers, then all that can give shares do,
 * in that order. No attack is lost by this. What a device signs or gives depends on others only by
 * the signatures that are there, and more signatures or shares never take anything from the server. */
#ifdef SEQUENTIAL
byte turn;
#define TURN(phase) (turn == (phase) * HONEST + _pid)
#define NEXT turn++
#else
#define TURN(phase) true
#define NEXT skip
#endif

/* Those that show no tag, or a wrong one (spec 9.7). */
#ifdef BROKEN_UNHEARD
#define COUNTED(set, boxes) (set)
#else
#define COUNTED(set, boxes) ((set) & ~(boxes))
#endif
#define MAY_BE_UNREAD(boxes) (SUBSET(boxes, set & ~ONE(_pid)) && SUBSET(set & ABSENT, boxes) \
    && ENOUGH(COUNTED(set, boxes)))

active [HONEST] proctype Device()
{
    byte set, unread;
    if
    :: ABSENT && _pid == 0 -> goto end_refused
    :: else
    fi;
end:
    do
#ifndef SEQUENTIAL
    :: atomic {
        state[_pid] == SHARED -> CHOOSE(set, FIT);
        members[_pid] = set;
        MOVE(_pid, SHARED, ShareDelivery, LINKED); set = 0
      }
    :: atomic {
        state[_pid] == LINKED -> CHOOSE(set, FIT); CHOOSE(unread, MAY_BE_UNREAD);
#ifndef BROKEN_UNHEARD   /* devices that it is not linked with count as if it were */
        heard[_pid] = ALL & ~unread;
#endif
        members[_pid] = set; opened[_pid] = set;
        MOVE(_pid, LINKED, OpenSlot, OPENED); set = 0; unread = 0
      }
#endif
    :: atomic {
        state[_pid] == OPENED && TURN(0) ->
#ifdef SEQUENTIAL
        opened[_pid] = ALL;
#endif
        MOVE(_pid, OPENED, Contribute, MASKED)
      }
    :: atomic {
        state[_pid] == MASKED && TURN(0) -> CHOOSE(set, FIT);
        members[_pid] = set; listed[_pid] = set; NEXT;
        MOVE(_pid, MASKED, ConsistencyCheck, CONFIRMED); set = 0
      }
#ifdef BROKEN_SIGNS_TWICE   /* signs a second list (spec 9.3: INCONSISTENT_SURVIVORS) */
    :: atomic {
        state[_pid] == CONFIRMED && !before[_pid] -> CHOOSE(set, FIT);
        before[_pid] = listed[_pid]; members[_pid] = set; listed[_pid] = set; set = 0
      }
#endif
    :: atomic {
        state[_pid] == CONFIRMED && TURN(1) ->
        set = members[_pid];   /* any other list is refused (spec 9.9, rule 1) */
        count_signers(_pid, set);
        if
        :: QUORUM ->
            d_step { revealed[_pid] = set; give_shares(_pid, set); look() };
            MOVE(_pid, CONFIRMED, UnmaskRequest, READY)
        :: else
        fi;
        set = 0; NEXT
      }
    od;
end_refused: false
}
