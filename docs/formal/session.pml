/* Both machines of a session, by all of their tables: a server that follows spec, section 10, devices
 * that may vanish at any time, and answers that come in any order, late or never.
 *
 * With FAULTY, the last device deals boxes that do not open, and refuses boxes that do, as it likes.
 * Every slot may be whole or tolerant, unless KINDS says which is. With REPLAY, only moves that a
 * test has recorded of the real machines are made, and the question is whether all of them can be.
 */
#ifndef SIGNED
#define SIGNED 1
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef VERIFIED
#define VERIFIED SIGNED   /* sums are opened to devices; a session without is this without the openings */
#endif
#ifdef REPLAY
#define MAY(who, to) (mover[at] == who && moved_to[at] == to); at++; MUST(not_all_replayed, at < MOVES)
#else
#define MAY(who, to) true
#endif
#define MOVE(d, from, event, to) MAY(d, to); assert(state[d] == from); state[d] = to
#define MOVE_SIGNED(d, from, event, to) assert(SIGNED); MOVE(d, from, event, to)
#define MOVE_UNSIGNED(d, from, event, to) assert(!SIGNED); MOVE(d, from, event, to)
#define SERVER(from, event, to) MAY(N, to); assert(server == from); server = to
#define SERVER_SIGNED(from, event, to) assert(SIGNED); SERVER(from, event, to)
#define SERVER_UNSIGNED(from, event, to) assert(!SIGNED); SERVER(from, event, to)
#include "common.pml"
#include "complaints.pml"

mtype = { IDLE, ADVERTISED, SHARED, LISTED, OPENED, MASKED, CONFIRMED, FAILED,   /* devices */
          ADVERTISE, SHARE, RECEIPT, LIST, MASK, CONFIRM, UNMASK, DONE, ABORTED,   /* the server */
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
byte members[N], heard[N] = ALL, list[N], device_agreed[N];
byte bad_boxes;           /* to whom the faulty device dealt boxes that do not open */
#ifdef FAULTY
#define IS_FAULTY(d) (d == N - 1)
#else
#define IS_FAULTY(d) false
#endif


#define TOO_FEW(set) (SIZE(set) < MIN_COHORT || SIZE(set) < T)

hidden byte i, j, best, no_refusal, due_abort, large_sum, whole_sum, same_list, exact_sum, due_blame;

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
            :: SIGNED && signers ->   /* the first t of its holders that signed, and that it counts */
                best = 0; j = 0;
                do
                :: j < N && best < T ->
#ifdef BROKEN_ANY_SIGNATURE   /* also of devices whose boxes it refused (spec 10.7) */
                    if
                    :: IN(j, signers) -> letter_signers[i] = letter_signers[i] | ONE(j); best++
#else
                    if
                    :: IN(j, signers & ~refused[i]) -> letter_signers[i] = letter_signers[i] | ONE(j); best++
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

/* The cohort that a slot is opened with: who is blamed goes, until nobody is (spec 10.7). */
inline settle()
{
    do
    :: judge(remaining);
        if
        :: bad_receipt | bad_box -> blame()
        :: else -> break
        fi
    od
}
inline blame()
{
    i = 0;
    do
    :: i < N ->   /* as in blame.pml */
        MUST(due_blame, IS_FAULTY(i) || (!IN(i, bad_receipt)
            && (!IN(i, bad_box) || SIZE(remaining & ~ONE(N - 1)) < T)));
        i++
    :: else -> break
    od;
    remaining = remaining & ~(bad_receipt | bad_box); bad_receipt = 0; bad_box = 0; i = 0
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
/* Every device that the slot was opened with has t holders that helped and had its box. */
inline check_shares()
{
    best = N; i = 0;
    do
    :: i < N ->
        if
        :: IN(i, opened) ->
            j = SIZE(answered & ~REFUSERS(i));
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
#define CANNOT_GO_ON (SIZE(answered) < T)
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
        :: IN(d, remaining) && !IN(d, answered) && answer[d] == ConsistencyCheck && server == LIST ->
            SERVER_SIGNED(LIST, ConsistencySignature, LIST); answered = answered | ONE(d); signers = signers | ONE(d)
        :: IN(d, remaining) && !IN(d, answered) && answer[d] == OpenSlot && server == MASK ->
            SERVER(MASK, MaskedInput, MASK); answered = answered | ONE(d); contributed = contributed | ONE(d)
        :: IN(d, remaining) && !IN(d, answered) && answer[d] == ConsistencyCheck && server == CONFIRM ->
            SERVER_SIGNED(CONFIRM, ConsistencySignature, CONFIRM); answered = answered | ONE(d); signers = signers | ONE(d)
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
            judge(remaining); blame();
            answered = 0;
            SERVER(RECEIPT, CloseRound, READY)
        :: server == LIST ->
            drop_silent();
            agreed = opened;
            if
            :: remaining != opened -> end_slot(LIST)
            :: else ->
                SERVER_SIGNED(LIST, CloseRound, MASK); send(OpenSlot, opened); signers = 0
            fi;
            if
            :: server == DONE -> goto end_over
            :: else
            fi
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
            if
            :: TOO_FEW(contributed) -> give_up(MASK); goto end_over
            :: else ->
                if
                :: SIGNED -> SERVER_SIGNED(MASK, CloseRound, CONFIRM); send(ConsistencyCheck, contributed)
                :: else -> SERVER_UNSIGNED(MASK, CloseRound, UNMASK); send(UnmaskRequest, contributed)
                fi
            fi
        :: server == CONFIRM ->
            drop_silent();
            if
            :: CANNOT_GO_ON -> give_up(CONFIRM); goto end_over
            :: else -> SERVER_SIGNED(CONFIRM, CloseRound, UNMASK); send(UnmaskRequest, contributed)
            fi
        :: server == UNMASK ->
            drop_silent();
            check_shares();
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
        :: IS_WHOLE(slot) && !agreed && SIGNED ->
            SERVER_SIGNED(READY, ListSlotCall, LIST); send(ConsistencyCheck, opened)
        :: else ->
            if
            :: IS_WHOLE(slot) -> assert(!agreed || opened == agreed); agreed = opened
            :: else
            fi;
            SERVER(READY, OpenSlotCall, MASK); send(OpenSlot, opened)
        fi
      }
    od;
end_over: false
}

/* What a device refuses; a refusal must be due to boxes that it could not read. */
#define COUNTED(d, set) ((set) & heard[d])
#define REFUSES(d, set) (!SUBSET(set, members[d]) || !IN(d, set) || TOO_FEW(COUNTED(d, set)))
#define LACKS_SIGNERS(d) (!SUBSET(letter_signers[d], COUNTED(d, letter_set[d])) || SIZE(letter_signers[d]) < T)
inline refuse(d)
{
    MUST(no_refusal, IS_FAULTY(d) || (IN(d, bad_boxes) && TOO_FEW(COUNTED(d, letter_set[d])))
        || (IN(d, bad_boxes) && SIGNED && SIZE(letter_signers[d]) < T && letter_signers[d] != 0
            && SUBSET(letter_signers[d], COUNTED(d, letter_set[d]))));
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
        :: !IS_FAULTY(D) -> heard[D] = ALL & ~refused[D]
        :: else
        fi;
        if
        :: REFUSES(D, letter_set[D]) -> refuse(D)
        :: else
        fi;
        members[D] = letter_set[D];
        MOVE(D, SHARED, ShareDelivery, READY); answer_letter(D)
      }
    :: atomic {
        state[D] == READY && letter_opening[D] -> MOVE_SIGNED(D, READY, SumOpening, READY);
        letter_opening[D] = false
      }
    :: atomic {
        state[D] == READY && !letter_opening[D] && letter[D] == ConsistencyCheck ->
        if
        :: device_agreed[D] || REFUSES(D, letter_set[D]) -> refuse(D)
        :: else
        fi;
        members[D] = letter_set[D]; list[D] = letter_set[D];
        MOVE_SIGNED(D, READY, ConsistencyCheck, LISTED); answer_letter(D)
      }
    :: atomic {
        state[D] == LISTED && letter[D] == OpenSlot ->
        if
        :: letter_whole[D] && (letter_set[D] != list[D] || LACKS_SIGNERS(D)) -> refuse(D)
        :: !letter_whole[D] && REFUSES(D, letter_set[D]) -> refuse(D)
        :: else
        fi;
        members[D] = letter_set[D]; list[D] = 0;   /* before a tolerant slot, what it signed is void */
        if
        :: letter_whole[D] -> device_agreed[D] = letter_set[D]
        :: else
        fi;
        MOVE_SIGNED(D, LISTED, OpenSlot, OPENED)
      }
    :: atomic {
        state[D] == READY && !letter_opening[D] && letter[D] == OpenSlot ->
        if
        :: letter_whole[D] && device_agreed[D] && letter_set[D] != device_agreed[D] -> refuse(D)
        :: letter_whole[D] && !device_agreed[D] && (SIGNED || REFUSES(D, letter_set[D])) -> refuse(D)
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
        MOVE_SIGNED(D, MASKED, ConsistencyCheck, CONFIRMED); answer_letter(D)
      }
    :: atomic {
        state[D] == MASKED && letter[D] == UnmaskRequest ->
        if
        :: REFUSES(D, letter_set[D]) -> refuse(D)
        :: else
        fi;
        members[D] = letter_set[D]; device_agreed[D] = letter_set[D];
        MOVE_UNSIGNED(D, MASKED, UnmaskRequest, READY); answer_letter(D)
      }
    :: atomic {
        state[D] == CONFIRMED && letter[D] == UnmaskRequest ->
        if
        :: letter_set[D] != members[D] || LACKS_SIGNERS(D) -> refuse(D)
        :: else
        fi;
        device_agreed[D] = letter_set[D];
        MOVE_SIGNED(D, CONFIRMED, UnmaskRequest, READY); answer_letter(D)
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
        :: state[D] == LISTED -> MOVE_SIGNED(D, LISTED, Close, FAILED)
        :: state[D] == OPENED -> MOVE(D, OPENED, Close, FAILED)
        :: state[D] == MASKED -> MOVE(D, MASKED, Close, FAILED)
        :: state[D] == CONFIRMED -> MOVE_SIGNED(D, CONFIRMED, Close, FAILED)
        fi;
        letter[D] = 0; letter_set[D] = 0; letter_signers[D] = 0; letter_opening[D] = false; letter_whole[D] = false;
        members[D] = 0; list[D] = 0; device_agreed[D] = 0; unread = 0
    }
end_failed: false
}
