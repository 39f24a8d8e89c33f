/* Blame only where it is due: complaints about boxes (spec 10.6), judged once, for any devices that
 * are still there. The colluding device deals boxes that do not open to whom it likes, and refuses
 * the boxes that it likes. Honest devices refuse exactly the boxes that do not open.
 */
#include "common.pml"
#include "complaints.pml"

hidden byte due_receipt, due_box;
#define LIAR (N - 1)
#define FIT_PRESENT(set) (IN(LIAR, set) && SIZE(set) >= 2)
#define FIT_REFUSED(set) SUBSET(set, present & ~ONE(LIAR))
#define FIT_BAD(set) SUBSET(set, present & ~ONE(LIAR))

active proctype Receipts()
{
    byte present, bad, d;
    CHOOSE(present, FIT_PRESENT);
    CHOOSE(bad, FIT_BAD);
    CHOOSE(refused[LIAR], FIT_REFUSED);
    do
    :: d < HONEST -> refused[d] = (IN(d, bad) -> ONE(LIAR) : 0); d++
    :: else -> break
    od;
    judge(present);
    d = 0;
    do
    :: d < HONEST ->
        MUST(due_receipt, !IN(d, bad_receipt));
        /* a device that the liar refused goes only if t others are not there to hold its shares */
        MUST(due_box, !IN(d, bad_box) || SIZE(present & ~ONE(LIAR)) < T);
        d++
    :: else -> break
    od;
end_refused: false
}
