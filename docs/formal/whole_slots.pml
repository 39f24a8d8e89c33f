/* Whole slots, and devices that were lost: the slots of a session (spec 9.7 to 9.9, 14.10).
 *
 * Slot i is whole if bit i of KINDS is 1, else tolerant. The server says anything: any lists, any
 * slot skipped, any order. All devices are linked. A tolerant slot has a sum over a
 * list if enough devices gave shares for it; what is inside such a slot is in agreement.pml. In a
 * whole slot, the masks of two honest devices cancel only if both were made for one list, and the
 * server has the sum of a set of devices if all their masks cancel.
 */
#include "common.pml"

#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef KINDS
#define KINDS 2   /* a tolerant slot, then a whole one */
#endif
#define IS_WHOLE(slot) IN(slot, KINDS)
#define AT(d, slot) (SLOTS * (d) + (slot))

mtype = { LINKED, READY, OPENED, MASKED, CONFIRMED };
mtype state[HONEST] = LINKED;
byte members[HONEST] = ALL;
byte heard[HONEST] = ALL;
byte agreed[HONEST];              /* the cohort, after the first slot; 0 before */
byte next[HONEST];                /* the first slot that may still be opened */
byte survivors_signed[SLOTS * HONEST];
byte answered[SLOTS * HONEST];        /* whole: the list that the vector was masked for */
byte revealed[SLOTS * HONEST];        /* tolerant: the list that shares were given for */

hidden byte p, q, slot_of_sum, set_of_sum, sums, signers, found, before, known, shrunk, every;
hidden byte one_sum, large_sum, whole_list, same_devices, never_back;

inline count_survivors(d, set, slot)
{
    d_step {
        signers = SIZE(set & COLLUDERS); q = 0;
        do
        :: q < HONEST -> signers = signers + (IN(q, set) && survivors_signed[AT(q, slot)] == set); q++
        :: else -> break
        od;
        q = 0
    }
}
/* Whether the masks of p and q cancel between their vectors of a whole slot. */
#ifdef BROKEN_UNBOUND   /* keys without the list in them (spec 5.7) */
#define CANCEL(p, q, slot) (IN(q, answered[AT(p, slot)]) && IN(p, answered[AT(q, slot)]))
#else
#define CANCEL(p, q, slot) (IN(q, answered[AT(p, slot)]) && answered[AT(p, slot)] == answered[AT(q, slot)])
#endif

/* The sums that the server has of a slot, as sets of honest devices; the last one is `found`. */
inline sums_of(slot)
{
    found = 0; sums = 0; set_of_sum = 1;
    do
    :: set_of_sum < ONE(HONEST) ->
        if
        :: IS_WHOLE(slot) ->
            known = true; p = 0;
            do
            :: p < HONEST ->
                if
                :: IN(p, set_of_sum) ->
                    known = known && answered[AT(p, slot)];
                    q = 0;
                    do
                    :: q < HONEST ->
                        known = known && (q == p || (IN(q, set_of_sum) && CANCEL(p, q, slot))
                            || (!IN(q, answered[AT(p, slot)])
                                && !(IN(q, set_of_sum) && IN(p, answered[AT(q, slot)]))));
                        q++
                    :: else -> break
                    od
                :: else
                fi;
                p++
            :: else -> break
            od
        :: else ->   /* tolerant: t - c honest devices and the colluding ones gave shares */
            signers = 0; p = 0;
            do
            :: p < HONEST ->
                signers = signers + (revealed[AT(p, slot)]
                    && (revealed[AT(p, slot)] & ~COLLUDERS) == set_of_sum);
                p++
            :: else -> break
            od;
            known = signers >= T - COLLUDING
        fi;
        if
        :: known ->
            sums++; found = set_of_sum;
            MUST(one_sum, sums <= 1);
            MUST(large_sum, SIZE(set_of_sum) + COLLUDING >= MIN_COHORT);
            p = 0;
            do
            :: p < HONEST ->   /* never split: all honest devices of the list that p answered for */
                MUST(whole_list, !IS_WHOLE(slot) || !IN(p, set_of_sum)
                    || (answered[AT(p, slot)] & ~COLLUDERS) == set_of_sum);
                p++
            :: else -> break
            od
        :: else
        fi;
        set_of_sum++
    :: else -> break
    od
}

/* Go through the slots. `before` is the sum of the last slot that had one, and `shrunk` says that
 * devices have since agreed on the survivors of a tolerant slot. */
inline look()
{
    before = 0; shrunk = false; every = true; slot_of_sum = 0;
    do
    :: slot_of_sum < SLOTS ->
        sums_of(slot_of_sum);
        p = 0;
        do
        :: p < HONEST -> shrunk = shrunk || revealed[AT(p, slot_of_sum)]; p++
        :: else -> break
        od;
        if
        :: found ->
            /* who was lost never comes back; a whole slot is over the devices of the sum before */
            MUST(never_back, !before || SUBSET(found, before));
            MUST(same_devices, !before || !IS_WHOLE(slot_of_sum) || shrunk || found == before);
            before = found; shrunk = false
        :: else -> every = false
        fi;
        slot_of_sum++
    :: else -> break
    od;
    GETS_TO(every)
}

#ifdef BROKEN_NOT_AGREED   /* a whole slot over any cohort that passes 9.4 (spec 9.7: NOT_AGREED) */
#define FIT_WHOLE(set) PASSES(_pid, set)
#else
#define FIT_WHOLE(set) ((set) == agreed[_pid])
#endif

inline answer_whole()
{
    d_step {
        answered[AT(_pid, slot)] = set; next[_pid] = slot + 1;
        look()
    };
    MOVE(_pid, OPENED, ContributeWhole, READY);
    if
    :: next[_pid] == SLOTS -> agreed[_pid] = 0; members[_pid] = 0   /* nothing comes after it */
    :: else
    fi
}

inline open()
{
    if
    :: state[_pid] == LINKED -> MOVE(_pid, LINKED, OpenSlot, OPENED)
    :: else -> MOVE(_pid, READY, OpenSlot, OPENED)
    fi
}

active [HONEST] proctype Device()
{
    byte set, slot;
end:
    do
    :: atomic {   /* any slot that was not opened, or passed over, may be next */
        (state[_pid] == LINKED || state[_pid] == READY) && next[_pid] < SLOTS ->
        slot = next[_pid];
        do
        :: slot < SLOTS - 1 -> slot++
        :: break
        od;
        if
        :: !IS_WHOLE(slot) ->
            CHOOSE(set, FIT);
            open();
            MOVE(_pid, OPENED, Contribute, MASKED);
            members[_pid] = set; next[_pid] = slot + 1
        :: IS_WHOLE(slot) && agreed[_pid] ->
            CHOOSE(set, FIT_WHOLE);
            open();
            answer_whole()
        :: IS_WHOLE(slot) && !agreed[_pid] ->   /* the first slot */
            CHOOSE(set, FIT);
            members[_pid] = set; agreed[_pid] = set;
            open();
            answer_whole()
        :: else
        fi;
        set = 0; slot = 0
      }
    :: atomic {
        state[_pid] == MASKED -> CHOOSE(set, FIT);
        members[_pid] = set; survivors_signed[AT(_pid, next[_pid] - 1)] = set;
        MOVE(_pid, MASKED, ConsistencyCheck, CONFIRMED); set = 0
      }
    :: atomic {
        state[_pid] == CONFIRMED ->
        set = members[_pid]; slot = next[_pid] - 1;
        count_survivors(_pid, set, slot);
        if
        :: signers >= T ->
            agreed[_pid] = set;
            d_step { revealed[AT(_pid, slot)] = set; look() };
            MOVE(_pid, CONFIRMED, UnmaskRequest, READY)
        :: else
        fi;
        set = 0; slot = 0
      }
    od;
end_refused: false
}
