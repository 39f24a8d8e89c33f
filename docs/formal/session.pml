/* Both machines of a session, by all of their tables: a server that follows spec, section 10, devices
 * that may vanish at any time, and answers that come in any order, late or never.
 *
 * With FAULTY, the last device deals boxes that do not open, and says that others' do not, as it likes.
 * Every slot may be whole or tolerant, unless KINDS says which is. With REPLAY, only moves that a
 * test has recorded of the real machines are made, and the question is whether all of them can be.
 */
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef VERIFIED
#define VERIFIED 1   /* sums are opened to devices; a session without is this without the openings */
#endif
#ifdef REPLAY
#define MAY(who, to) (mover[at] == who && moved_to[at] == to); at++; MUST(not_all_replayed, at < MOVES)
#else
#define MAY(who, to) true
#endif
#define MOVE(d, from, event, to) MAY(d, to); assert(state[d] == from); state[d] = to
#define SERVER(from, event, to) MAY(N, to); assert(server == from); server = to
#include "common.pml"

mtype = { IDLE, ADVERTISED, SHARED, LINKED, OPENED, MASKED, CONFIRMED, FAILED,   /* devices */
          ADVERTISE, SHARE, RECEIPT, MASK, CONFIRM, UNMASK, DONE, ABORTED,   /* the server */
          READY };   /* both */
mtype = { SessionOpen, RosterMessage, ShareDelivery, ConsistencyCheck, OpenSlot, UnmaskRequest };
#ifdef REPLAY
#include "trace.pml"   /* MOVES, who moved, to which state; and the devices of each slot's sum */
byte at;
hidden byte not_all_replayed;
#endif

mtype state[N] = IDLE;
mtype server = ADVERTISE;

/* The letter to a device, taken or not; its set and signers; its answer. */
mtype letter[N] = SessionOpen;
byte letter_set[N], letter_signers[N];
bool letter_whole[N];      /* its slot is whole */
bool letter_opening[N];   /* it comes with the opening of the last sum, if that is verified */
mtype answer[N];          /* the letter that is answered; 0 for none, or none any more */

/* The server. */
byte remaining = ALL, answered, opened, contributed, signers, agreed, slot = SLOTS;
byte kinds;               /* bit i: slot i is whole */
bool has_opening;
#define AFTER(slot) (slot == SLOTS -> 0 : slot + 1)   /* before the first, `slot` is SLOTS */
#define IS_WHOLE(slot) IN(slot, kinds)
#define IS_LAST(slot) (slot == SLOTS - 1)

/* Devices. */
byte members[N], heard[N] = ALL, device_agreed[N];
byte refused[N];          /* whose boxes a device could not read, as it says */
byte bad_boxes;           /* to whom the faulty device dealt boxes that do not open */
#ifdef FAULTY
#define IS_FAULTY(d) (d == N - 1)
#else
#define IS_FAULTY(d) false
#endif


#define TOO_FEW(set) (SIZE(set) < MIN_COHORT || SIZE(set) < T)

hidden byte i, j, best, no_refusal, due_abort, large_sum, whole_sum, same_list, exact_sum, due_blame;

/* Two devices are linked if both could read the other's box (spec 10.6). */
#define REFUSED(d, p) (IN(p, refused[d]) << (d))
#define REFUSERS(p) (REFUSED(0, p) | REFUSED(1, p) | REFUSED(2, p) | REFUSED(3, p))
#define LINKED_WITH(d) (ALL & ~(refused[d] | REFUSERS(d)))

inline send(kind, set)
{
    i = 0;
    do
    :: i < N ->
        if
        :: IN(i, remaining) ->
            letter[i] = kind; letter_set[i] = set; letter_signers[i] = 0;
            letter_opening[i] = has_opening; letter_whole[i] = opened && IS_WHOLE(slot);
            if
            :: signers ->   /* the first t of its linked holders that signed */
                best = 0; j = 0;
                do
                :: j < N && best < T ->
#ifdef BROKEN_ANY_SIGNATURE   /* also of devices that it is not linked with (spec 10.8) */
                    if
                    :: IN(j, signers) -> letter_signers[i] = letter_signers[i] | ONE(j); best++
#else
                    if
                    :: IN(j, signers & LINKED_WITH(i)) -> letter_signers[i] = letter_signers[i] | ONE(j); best++
#endif
                    :: else
                    fi;
                    j++
                :: else -> break
                od
            :: else
            fi
        :: else
        fi;
        i++
    :: else -> break
    od;
    has_opening = false; answered = 0; i = 0; j = 0; best = 0
}

inline drop_silent()
{
#ifndef BROKEN_KEEPS   /* devices that did not answer stay in the session (spec 10.3) */
    remaining = remaining & answered
#else
    skip
#endif
}

#ifdef BROKEN_ONE_LINK   /* who lacks a link is dropped */
#define IS_ISOLATED(d) (!SUBSET(remaining, LINKED_WITH(d)))
#else
#define IS_ISOLATED(d) (SIZE(remaining & LINKED_WITH(d)) < T)
#endif

/* The cohort that a slot is opened with: isolated devices go, until there is none (spec 10.11). */
inline settle()
{
    do
    :: best = 0; i = 0;
        do
        :: i < N ->
            if
            :: IN(i, remaining) && IS_ISOLATED(i) -> best = best | ONE(i);
                MUST(due_blame, IS_FAULTY(i) || SIZE(remaining & ~(IS_FAULTY(N - 1) << (N - 1))) < T)
            :: else
            fi;
            i++
        :: else -> break
        od;
        i = 0;
        if
        :: best -> remaining = remaining & ~best
        :: else -> break
        fi
    od;
    best = 0
}

inline give_up(from)
{
    MUST(due_abort, IS_FAULTY(N - 1) || TOO_FEW(answered) || TOO_FEW(remaining));
    SERVER(from, Abort, ABORTED)
}
inline end_slot(from)
{
    opened = 0; contributed = 0; signers = 0; answered = 0;
    if
    :: IS_LAST(slot) -> SERVER(from, EndLastSlot, DONE)
    :: else -> SERVER(from, EndSlot, READY)
    fi
}
inline reveal()
{
    MUST(large_sum, SIZE(contributed) >= MIN_COHORT);
    MUST(whole_sum, !IS_WHOLE(slot) || contributed == opened);
    i = 0;
    do
    :: i < N ->   /* all that gave shares or vectors did so for this list */
        MUST(same_list, !IN(i, answered) || device_agreed[i] == contributed);
        i++
    :: else -> break
    od;
    i = 0;
    has_opening = VERIFIED;
#ifdef REPLAY
    (summed[slot] == contributed);
#endif
    agreed = contributed
}
/* Every device that the slot was opened with has t linked holders that helped (spec 10.11). */
inline check_shares(helpers)
{
    best = N; i = 0;
    do
    :: i < N ->
        if
        :: IN(i, opened) ->
            j = SIZE((helpers) & LINKED_WITH(i));
            if
            :: j < best -> best = j
            :: else
            fi
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0; j = 0
}

#ifdef BROKEN_WAITS   /* waits for every device (spec 10.3) */
#define MAY_CLOSE (answered == remaining)
#else
#define MAY_CLOSE true
#endif
#ifdef BROKEN_IMPATIENT   /* gives up when anybody is missing (spec 10.8) */
#define CANNOT_GO_ON (answered != opened)
#else
#define CANNOT_GO_ON (best < T)
#endif
#ifdef BROKEN_PARTIAL   /* takes what came for the sum of a whole slot (spec 10.8) */
#define CAN_SUM (SIZE(contributed) >= MIN_COHORT)
#else
#define CAN_SUM (contributed == opened)
#endif

active proctype Server()
{
    byte d, chosen;
#ifdef KINDS
    kinds = KINDS;
#else
    select(kinds : 0 .. (1 << SLOTS) - 1);
#endif
collect:
    do
    :: atomic {   /* take any answer */
        if
        :: answer[0] -> d = 0
        :: answer[1] -> d = 1
        :: answer[2] -> d = 2
        :: answer[3] -> d = 3
        fi;
        if
        :: IN(d, remaining) && !IN(d, answered) && answer[d] == SessionOpen && server == ADVERTISE ->
            SERVER(ADVERTISE, AdvertiseKeys, ADVERTISE); answered = answered | ONE(d)
        :: IN(d, remaining) && !IN(d, answered) && answer[d] == RosterMessage && server == SHARE ->
            SERVER(SHARE, ShareKeys, SHARE); answered = answered | ONE(d)
        :: IN(d, remaining) && !IN(d, answered) && answer[d] == ShareDelivery && server == RECEIPT ->
            SERVER(RECEIPT, ShareReceipt, RECEIPT); answered = answered | ONE(d)
        :: IN(d, remaining) && !IN(d, answered) && answer[d] == OpenSlot && server == MASK ->
            SERVER(MASK, MaskedInput, MASK); answered = answered | ONE(d); contributed = contributed | ONE(d)
        :: IN(d, remaining) && !IN(d, answered) && answer[d] == ConsistencyCheck && server == CONFIRM ->
            SERVER(CONFIRM, ConsistencySignature, CONFIRM); answered = answered | ONE(d); signers = signers | ONE(d)
        :: IN(d, remaining) && !IN(d, answered) && answer[d] == UnmaskRequest && server == UNMASK ->
            SERVER(UNMASK, UnmaskShares, UNMASK); answered = answered | ONE(d)
#ifdef BROKEN_LATE   /* takes a vector after its round was closed (spec 10.12) */
        :: answer[d] == OpenSlot && server == UNMASK -> contributed = contributed | ONE(d)
#endif
        :: else   /* late, or of a device that was dropped: ignored */
        fi;
        answer[d] = 0; d = 0
      }
    :: atomic {   /* close the round, whoever has answered */
        server != READY && MAY_CLOSE ->
        if
        :: server == ADVERTISE ->
            drop_silent();
            if
            :: TOO_FEW(remaining) -> give_up(ADVERTISE); goto end_over
            :: else -> SERVER(ADVERTISE, CloseRound, SHARE); send(RosterMessage, remaining)
            fi
        :: server == SHARE ->
            drop_silent();
            if
            :: TOO_FEW(remaining) -> give_up(SHARE); goto end_over
            :: else -> SERVER(SHARE, CloseRound, RECEIPT); send(ShareDelivery, remaining)
            fi
        :: server == RECEIPT ->
            drop_silent();
            answered = 0;
            SERVER(RECEIPT, CloseRound, READY)
        :: server == MASK && IS_WHOLE(slot) ->
            drop_silent();
            if
            :: CAN_SUM -> reveal()
            :: else
            fi;
            end_slot(MASK);
            if
            :: server == DONE -> goto end_over
            :: else
            fi
        :: server == MASK && !IS_WHOLE(slot) ->
            drop_silent();
            check_shares(contributed);
            if
            :: TOO_FEW(contributed) || best < T -> best = 0; give_up(MASK); goto end_over
            :: else -> best = 0; SERVER(MASK, CloseRound, CONFIRM); send(ConsistencyCheck, contributed)
            fi
        :: server == CONFIRM ->
            drop_silent();
            check_shares(answered);
            if
            :: CANNOT_GO_ON -> best = 0; give_up(CONFIRM); goto end_over
            :: else -> best = 0; SERVER(CONFIRM, CloseRound, UNMASK); send(UnmaskRequest, contributed)
            fi
        :: server == UNMASK ->
            drop_silent();
            check_shares(answered);
            if
            :: best < T -> best = 0; give_up(UNMASK); goto end_over
            :: else -> best = 0; reveal(); end_slot(UNMASK)
            fi;
            if
            :: server == DONE -> goto end_over
            :: else
            fi
        fi
      }
    :: atomic {   /* open a slot: any that was not passed over, and that can have a sum */
        server == READY ->
        chosen = AFTER(slot);
        do
        :: chosen < SLOTS - 1 -> chosen++
        :: break
        od;
        if
        :: chosen >= SLOTS -> goto end_over
        :: chosen < SLOTS && IS_WHOLE(chosen) && agreed && !SUBSET(agreed, remaining) ->
            chosen = 0; goto end_over   /* a device of this whole slot is gone: the caller stops */
        :: else
        fi;
        slot = chosen; chosen = 0;
        if
        :: !IS_WHOLE(slot) || !agreed -> settle()
        :: else
        fi;
        if
        :: (!IS_WHOLE(slot) || !agreed) && TOO_FEW(remaining) -> give_up(READY); goto end_over
        :: else
        fi;
        opened = remaining;
        if
        :: IS_WHOLE(slot) -> assert(!agreed || opened == agreed); agreed = opened
        :: else
        fi;
        SERVER(READY, OpenSlotCall, MASK); send(OpenSlot, opened)
      }
    od;
end_over: false
}

/* What a device refuses: nothing, if the server is honest. */
#define COUNTED(d, set) ((set) & heard[d])
#define REFUSES(d, set) (!SUBSET(set, members[d]) || !IN(d, set) || TOO_FEW(COUNTED(d, set)))
#define LACKS_SIGNERS(d) (!SUBSET(letter_signers[d], COUNTED(d, letter_set[d])) || SIZE(letter_signers[d]) < T)
inline refuse(d)
{
    MUST(no_refusal, IS_FAULTY(d));
    goto close
}
inline answer_letter(d)
{
    answer[d] = letter[d]; letter[d] = 0; letter_set[d] = 0; letter_signers[d] = 0; letter_opening[d] = false; letter_whole[d] = false
}

active [N] proctype Device()
{
#define D (_pid - 1)
    byte unread;
    if
    :: IS_FAULTY(D) ->
        select(bad_boxes : 0 .. (1 << HONEST) - 1);
        select(unread : 0 .. (1 << HONEST) - 1)
    :: else
    fi;
end:
    do
    :: atomic {
        letter[D] == SessionOpen -> MOVE(D, IDLE, SessionOpen, ADVERTISED); answer_letter(D)
      }
    :: atomic {
        letter[D] == RosterMessage ->
        if
        :: TOO_FEW(letter_set[D]) || !IN(D, letter_set[D]) -> refuse(D)
        :: else
        fi;
        members[D] = letter_set[D];
        MOVE(D, ADVERTISED, RosterMessage, SHARED); answer_letter(D)
      }
    :: atomic {
        letter[D] == ShareDelivery ->
        if
        :: IN(D, bad_boxes) && IN(N - 1, letter_set[D]) -> refused[D] = ONE(N - 1)
        :: IS_FAULTY(D) -> refused[D] = unread & letter_set[D]; unread = 0
        :: else
        fi;
        if
        :: REFUSES(D, letter_set[D]) -> refuse(D)
        :: else
        fi;
        members[D] = letter_set[D];
        MOVE(D, SHARED, ShareDelivery, LINKED); answer_letter(D)
      }
    :: atomic {
        state[D] == READY && letter_opening[D] -> MOVE(D, READY, SumOpening, READY);
        letter_opening[D] = false
      }
    :: atomic {   /* the tags that come are those of all that it is linked with */
        state[D] == LINKED && letter[D] == OpenSlot ->
        heard[D] = LINKED_WITH(D);
        if
        :: REFUSES(D, letter_set[D]) -> refuse(D)
        :: else
        fi;
        members[D] = letter_set[D];
        if
        :: letter_whole[D] -> device_agreed[D] = letter_set[D]
        :: else
        fi;
        MOVE(D, LINKED, OpenSlot, OPENED)
      }
    :: atomic {
        state[D] == READY && !letter_opening[D] && letter[D] == OpenSlot ->
        if
        :: letter_whole[D] && letter_set[D] != device_agreed[D] -> refuse(D)
        :: !letter_whole[D] && REFUSES(D, letter_set[D]) -> refuse(D)
        :: else
        fi;
        members[D] = letter_set[D];
        if
        :: letter_whole[D] -> device_agreed[D] = letter_set[D]
        :: else
        fi;
        MOVE(D, READY, OpenSlot, OPENED)
      }
    :: atomic {
        state[D] == OPENED ->
        if
        :: letter_whole[D] -> MOVE(D, OPENED, ContributeWhole, READY)
        :: else -> MOVE(D, OPENED, Contribute, MASKED)
        fi;
        answer_letter(D)
      }
    :: atomic {
        state[D] == MASKED && letter[D] == ConsistencyCheck ->
        if
        :: REFUSES(D, letter_set[D]) -> refuse(D)
        :: else
        fi;
        members[D] = letter_set[D];
        MOVE(D, MASKED, ConsistencyCheck, CONFIRMED); answer_letter(D)
      }
    :: atomic {
        state[D] == CONFIRMED && letter[D] == UnmaskRequest ->
        if
        :: letter_set[D] != members[D] || LACKS_SIGNERS(D) -> refuse(D)
        :: else
        fi;
        device_agreed[D] = letter_set[D];
        MOVE(D, CONFIRMED, UnmaskRequest, READY); answer_letter(D)
      }
    :: atomic { letter[D] || state[D] == OPENED -> goto close }   /* it vanishes */
    od;
close:
    atomic {
        if
        :: state[D] == IDLE -> MOVE(D, IDLE, Close, FAILED)
        :: state[D] == ADVERTISED -> MOVE(D, ADVERTISED, Close, FAILED)
        :: state[D] == SHARED -> MOVE(D, SHARED, Close, FAILED)
        :: state[D] == READY -> MOVE(D, READY, Close, FAILED)
        :: state[D] == LINKED -> MOVE(D, LINKED, Close, FAILED)
        :: state[D] == OPENED -> MOVE(D, OPENED, Close, FAILED)
        :: state[D] == MASKED -> MOVE(D, MASKED, Close, FAILED)
        :: state[D] == CONFIRMED -> MOVE(D, CONFIRMED, Close, FAILED)
        fi;
        letter[D] = 0; letter_set[D] = 0; letter_signers[D] = 0; letter_opening[D] = false; letter_whole[D] = false;
        members[D] = 0; device_agreed[D] = 0; unread = 0
    }
end_failed: false
}
