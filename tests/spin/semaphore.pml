/* The semaphore of core/semaphore.h as a model for SPIN: POSTERS publish POSTS results each, any poster may be killed
 * between two steps, and the waiter once (a successor goes on). Each line of shm_post, shm_alert and shm_await that
 * touches shared memory is one step here, under the same name.
 *
 * Shown for every interleaving, without any bound on preemptions: no deadlock (the waiter never sleeps for good),
 * the waiter ends under weak fairness, it never counts a unit whose result is not published, and in the end it has
 * taken every published result, those of killed posters included.
 *
 * Not shown here: memory orders. SPIN's memory is sequentially consistent; stale reads are the explorer's part
 * (tests/core). Time does not pass: no heartbeat comes to the rescue.
 *
 * FAULT=n takes a step away; SPIN must refute each (tests/spin/check.py):
 *   1 the waiter does not look again between closing the gate and sleeping   4 a death alerts nobody
 *   2 the waiter reads the hint after the truth                              5 a result is posted, then published
 *   3 an alert wakes before it opens the gate                                6 the k-th post wakes nobody */
#ifndef FAULT
#define FAULT 0
#endif
#ifndef POSTERS
#define POSTERS 2
#endif
#ifndef POSTS
#define POSTS 2
#endif
#ifndef KILLS
#define KILLS 1
#endif
#define ALL (POSTERS * POSTS)

byte posted, wake_at, alert, taken;
bit gate;
bool asleep;             /* the waiter stands in the futex queue of `gate` */
byte published[POSTERS]; /* the truth; a pool's response words */
bool killed[POSTERS], told[POSTERS], over[POSTERS], waiter_killed, waiter_over, done;

inline futex_wake() { asleep = false }
inline futex_wait(expected) {
    if
    :: d_step { gate == expected -> asleep = true };
       !asleep
    :: gate != expected
    fi
}

proctype poster(byte me) {
    byte i, mine;
    {
        do
        :: i < POSTS ->
#if FAULT != 5
            published[me]++;
#endif
            d_step { posted++; mine = posted; i++ };
#if FAULT == 5
            published[me]++;
#endif
            if
            :: gate == 0
            :: else ->
                if
                :: mine < wake_at
                :: else ->
#if FAULT != 6
                    if
                    :: d_step { gate == 1 -> gate = 0 }; futex_wake()
                    :: gate == 0
                    fi
#else
                    skip
#endif
                fi
            fi
        :: else -> break
        od
    } unless { killed[me] };
    over[me] = true
}

/* Notices the end of a killed poster, and says so; in the product a thread that polls pidfds. */
proctype watcher(byte who) {
end:
    killed[who] && over[who];
    told[who] = true;
#if FAULT != 4
    alert++;
#if FAULT == 3
    futex_wake();
    gate = 0
#else
    gate = 0;
    futex_wake()
#endif
#endif
}

/* What is there, each poster's word read in a step of its own; and what can still come as far as is known. */
inline scan() {
    have = 0;
    k = 0;
    do
    :: k < POSTERS -> d_step { have = have + published[k]; k++ }
    :: else -> break
    od;
    atomic { have = have - taken; k = 0 }
}
inline can_come() {
    atomic {
        most = 0;
        k = 0;
        do
        :: k < POSTERS ->
            if
            :: told[k] -> most = most + published[k]
            :: else -> most = most + POSTS
            fi;
            k++
        :: else -> break
        od;
        most = most - taken;
        k = 0
    }
}

proctype waiter() {
    byte have, most, need, seen, hint, at, k;
    {
        do
        :: seen = alert; /* before the news is looked for: what is missed changes it again */
           can_come();
           if
           :: most == 0 -> break
           :: else
           fi;
           atomic { select(need : 1 .. most) };
           do
           ::
#if FAULT != 2
              hint = posted;
#endif
              scan();
#if FAULT == 2
              hint = posted;
#endif
              if
              :: have >= need -> d_step { taken = taken + need; have = 0; hint = 0; need = 0 }; break
              :: else
              fi;
              if
              :: alert != seen -> d_step { have = 0; hint = 0; need = 0 }; break
              :: else
              fi;
              d_step { at = hint + (need - have); have = 0; hint = 0 };
              if /* yield-spinning may look, and may see it */
              :: true
              :: posted >= at || alert != seen -> goto again
              fi;
              wake_at = at;
              gate = 1;
#if FAULT != 1
              if
              :: posted >= at || alert != seen -> gate = 0; goto again
              :: else
              fi;
#endif
              futex_wait(1);
again:        at = 0
           od
        od;
        done = true
    } unless { waiter_killed && !done };
    asleep = false;
    waiter_over = true
}

/* Kills the first or the last poster (the others are like these), when it likes, or nobody. */
proctype killer() {
    byte left = KILLS;
    do
    :: left > 0 ->
        if
        :: d_step { !over[0] && !killed[0] -> killed[0] = true; left-- }
        :: d_step { !over[POSTERS - 1] && !killed[POSTERS - 1] -> killed[POSTERS - 1] = true; left-- }
        :: left = 0
        fi
    :: left == 0 -> break
    od
}

init {
    byte i;
    atomic {
        for (i : 0 .. POSTERS - 1) {
            run poster(i);
            run watcher(i)
        }
        run waiter();
        run killer()
    }
#ifdef SUCCESSOR
    if
    :: waiter_killed = true;
       (waiter_over);
       if
       :: done
       :: else ->
          waiter_killed = false;
          waiter_over = false;
          run waiter()
       fi
    :: true
    fi;
#endif
    (done);
    i = 0;
    byte sum;
    do
    :: i < POSTERS -> (over[i]); sum = sum + published[i]; i++
    :: else -> break
    od;
    assert(sum == taken)
}

ltl ends { <> done }
