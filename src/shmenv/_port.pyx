"""The manager's end of the channels: give commands, wait for answers, gather rows. One call a batch, never one an env."""

from shmenv.errors import DamageError, ShmenvError

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from shmenv._channel cimport (
    SHM_OP_RESET, SHM_OP_STEP, SHM_OP_CALL, SHM_HAS_PAYLOAD, SHM_KEEP_ROW, SHM_WHOLE, SHM_GO_ON, SHM_OP_CODE,
    SHM_ROW_ERROR, SHM_ROW_NOTE, SHM_ROW_SPILLED, SHM_ROW_FINAL_NOTE, SHM_ROW_FINAL_SPILLED, SHM_ROW_NEEDS_RESET, shm_word, a32, shm_semaphore, shm_wait,
    shm_worker, SHM_READY, SHM_TIMEOUT, SHM_INTERRUPTED, SHM_HEARTBEAT, SHM_QUIT, SHM_CONSTRUCT, INT64_MAX, os_now_ns,
    shm_await, shm_alerts, shm_alert, shm_command, shm_count_reset, shm_answered, shm_has_ended, shm_ring_bell, shm_give_order,
    shm_reset_channel, shm_reset_worker, shm_generation, shm_read_account, shm_core, shm_doing, shm_has_done_all, shm_end,
    shm_done_ns, shm_begin_wait, shm_end_wait, SHM_SLICE_NS
)
from shmenv._turn cimport Turn

RESET, STEP, CALL = SHM_OP_RESET, SHM_OP_STEP, SHM_OP_CALL
ROW_ERROR, ROW_NEEDS_RESET, ROW_NOTE, ROW_FINAL_NOTE = SHM_ROW_ERROR, SHM_ROW_NEEDS_RESET, SHM_ROW_NOTE, SHM_ROW_FINAL_NOTE
ROW_NOTES = SHM_ROW_NOTE | SHM_ROW_SPILLED | SHM_ROW_FINAL_NOTE | SHM_ROW_FINAL_SPILLED
READY, TIMEOUT, HEARTBEAT = SHM_READY, SHM_TIMEOUT, SHM_HEARTBEAT
FOREVER = INT64_MAX
SEMAPHORE_BYTES, WORKER_BYTES = sizeof(shm_semaphore), sizeof(shm_worker)

cdef int64_t LOOK_NS = 1_000_000_000  # from one look for answers that were taken back to the next, amid commands

cdef enum: IDLE = 0, OWED = 1  # does the caller still have to get this env's answer?
cdef enum: NOT = 0, TAKEABLE = 1, VOID = 2  # has an env gone on by itself?

# One env as the manager knows it; process-local.
cdef struct Env:
    a32 *cmd
    a32 *rsp
    a32 *ended
    uint32_t *op
    uint32_t worker
    uint32_t given      # number of the last command
    uint32_t owed       # number of the command whose answer the caller has not got yet
    uint32_t state      # IDLE or OWED
    bint chosen         # by the last `ready`
    uint64_t delivered  # the use of the pool, as `Turn` counts them, that delivered the last answer
    uint32_t plane      # where the answer of the last step or reset goes
    uint32_t previous   # the plane of the step or reset before
    int64_t given_ns    # CLOCK_MONOTONIC at that command
    bint goes_on        # by a reset that nobody has to give, when a step ends an episode
    uint32_t gone_on    # whether it did so after the last step, and the caller may take that reset: NOT, TAKEABLE or VOID
    uint32_t following  # the number of that reset

cdef struct Scan:
    Env *envs
    const uint32_t *ids  # NULL: all envs that owe an answer
    uint32_t count


cdef uint32_t count_answers(void *arg) noexcept nogil:
    cdef Scan *scan = <Scan *>arg
    cdef uint32_t k, found = 0
    cdef Env *env
    if scan.ids == NULL:
        for k in range(scan.count):
            env = &scan.envs[k]
            if env.state == OWED and shm_answered(env.rsp, env.owed):
                found += 1
    else:
        for k in range(scan.count):
            env = &scan.envs[scan.ids[k]]
            # what is owed may lie before the last command (a call), or be still to come (a deferred reset)
            if shm_answered(env.rsp, env.given) and (env.state != OWED or shm_answered(env.rsp, env.owed)):
                found += 1
    return found


@cython.final
cdef class Port:
    """The manager's end of a pool's channels.

    Called by: the thread that uses the pool; `close` and `alert` by any. All ids are uint32 arrays, ascending, in
    range and without repetition: the pool has checked them.
    """

    cdef object segment
    cdef Turn turn
    cdef shm_semaphore *results
    cdef shm_worker **workers
    cdef Env *envs
    cdef uint64_t *written   # [planes][num_envs]: serial of the last command that writes this row
    cdef uint8_t *rung
    cdef uint32_t *flags
    cdef uint32_t *heads
    cdef uint32_t *final_heads
    cdef char *notes
    cdef char *final_notes
    cdef uint32_t num_envs, num_workers, planes, note_bytes, start, seen_alert, cores
    cdef uint64_t serial
    cdef int64_t looked_ns  # CLOCK_MONOTONIC of the last look for answers that were taken back
    cdef shm_wait wait
    cdef bint whole  # was the last command one whose answers are waited for all together?
    cdef readonly uint32_t pending
    cdef readonly uint64_t copied   # bytes that `gather` has copied
    cdef readonly uint32_t crowded  # batches in a row with more workers on one core than there need be

    def __cinit__(self, segment, dict at, list workers, Turn turn not None, *, uint32_t num_envs, uint32_t planes, uint32_t note_bytes,
                  uint32_t first_command, waits, uint32_t cores):
        cdef size_t base = segment.address
        cdef uint32_t i, k
        cdef Env *env
        self.segment, self.turn = segment, turn
        self.num_envs, self.num_workers, self.planes, self.note_bytes = num_envs, len(workers), planes, note_bytes
        self.results = <shm_semaphore *>(base + <size_t>at["semaphore"])
        self.flags = <uint32_t *>(base + <size_t>at["flags"])
        self.heads, self.notes = <uint32_t *>(base + <size_t>at["heads"]), <char *>(base + <size_t>at["notes"])
        self.final_heads = <uint32_t *>(base + <size_t>at["final_heads"]) if "final_heads" in at else NULL
        self.final_notes = <char *>(base + <size_t>at["final_notes"]) if "final_notes" in at else NULL
        self.workers = <shm_worker **>PyMem_Calloc(self.num_workers, sizeof(shm_worker *))
        self.rung = <uint8_t *>PyMem_Calloc(self.num_workers, 1)
        self.envs = <Env *>PyMem_Calloc(num_envs, sizeof(Env))
        self.written = <uint64_t *>PyMem_Calloc(planes * num_envs, sizeof(uint64_t))
        if not (self.workers and self.rung and self.envs and self.written):
            raise MemoryError
        for w, places in enumerate(workers):
            self.workers[w] = <shm_worker *>(base + <size_t>places["worker"])
            for k in range(<uint32_t>places["count"]):
                env = &self.envs[<uint32_t>places["first"] + k]
                env.worker, env.given, env.owed = w, first_command, first_command
                env.cmd = (<a32 *>(base + <size_t>places["cmd"])) + k
                env.rsp = (<a32 *>(base + <size_t>places["rsp"])) + k
                env.ended = (<a32 *>(base + <size_t>places["ended"])) + k
                env.op = (<uint32_t *>(base + <size_t>places["op"])) + k
                shm_command(env.cmd, first_command)
                shm_reset_channel(env.cmd, env.rsp)
                shm_end(env.ended, first_command)  # not 0, which counts as command 2**32
        self.wait.spin_ns, self.wait.patience_ns, self.wait.late_ns, self.wait.heartbeat_ns = waits
        self.wait.expected_ns, self.cores = self.wait.spin_ns, cores

    def __dealloc__(self):
        PyMem_Free(self.workers)
        PyMem_Free(self.rung)
        PyMem_Free(self.envs)
        PyMem_Free(self.written)

    # -- commands

    def command(self, const uint32_t[::1] ids, uint32_t code, int plane, bint collect, bint whole, list payloads=None):
        """Give these envs (None: all) a command, and wake their workers.

        Args:
            code: RESET, STEP or CALL.
            plane: where the answers go; -1 puts each env on the plane after its own. Without meaning for CALL.
            collect: the answers are owed to the caller, who gets them by `take`.
            whole: the caller waits for all of these answers: one post a worker will do.
            payloads: per id, whether a payload lies in the inbound area; None: nowhere.
        """
        cdef uint32_t k, i, n = self.num_envs if ids is None else <uint32_t>ids.shape[0]
        cdef int64_t now = os_now_ns()
        cdef Env *env
        cdef uint32_t word, number
        cdef uint32_t rung = 0, fullest = 0, core
        cdef uint32_t on_core[64]
        self.serial += 1
        self.whole = whole
        if now - self.looked_ns > LOOK_NS:
            self.look_for_damage(now)
        for k in range(n):
            i = k if ids is None else ids[k]
            env = &self.envs[i]
            self.catch_up(env, i)
            if code != SHM_OP_CALL:
                env.previous = env.plane
                env.plane = (env.plane + 1) % self.planes if plane < 0 else <uint32_t>plane
                self.written[env.plane * self.num_envs + i] = self.serial
            word = code | env.plane << 8 | (SHM_WHOLE if whole else 0)
            if payloads is not None and payloads[k]:
                word |= SHM_HAS_PAYLOAD
            if env.goes_on and code == SHM_OP_STEP:
                word |= SHM_GO_ON
                self.written[(env.plane + 1) % self.planes * self.num_envs + i] = self.serial  # by the reset after it
            env.op[0] = word
            if env.gone_on:
                env.given = shm_count_reset(env.given, env.following)
            if code == SHM_OP_RESET and env.gone_on == TAKEABLE and env.goes_on and plane < 0:
                number = env.following  # it is under way, or done; the payload is for a worker that takes its place
            else:
                env.given += 1
                number = env.given
                self.rung[env.worker] = 1
            if code != SHM_OP_CALL:
                env.gone_on = NOT
            env.given_ns = now
            if collect:
                env.owed = number
                if env.state != OWED:
                    env.state = OWED
                    self.pending += 1
            shm_command(env.cmd, env.given)
        memset(on_core, 0, sizeof(on_core))
        for k in range(self.num_workers):
            if self.rung[k]:
                self.rung[k] = 0
                core = shm_core(self.workers[k]) & 63  # beyond 64 cores a hint that may be wrong
                on_core[core] += 1
                rung, fullest = rung + 1, max(fullest, on_core[core])
                if shm_ring_bell(self.workers[k], now):
                    # The kernel may put whom it wakes behind another: a core left idle now fetches it, a spinning one not.
                    self.wait.shy = max(self.wait.shy, 1)
                    now = os_now_ns()  # waking takes long: the next one is not late for it
        if rung > 1:  # one alone says nothing
            self.crowded = self.crowded + 1 if fullest > (rung + self.cores - 1) // self.cores else 0

    cdef inline void catch_up(self, Env *env, uint32_t i) noexcept:
        """Note whether the env has gone on after its last step, once it has answered that."""
        if not env.op[0] & SHM_GO_ON or not shm_answered(env.rsp, env.given):
            return
        env.op[0] &= ~SHM_GO_ON
        if self.flags[env.plane * self.num_envs + i] & SHM_ROW_NEEDS_RESET:
            env.gone_on, env.following = TAKEABLE, env.given + 1

    def note_gone_on(self, uint32_t env_id):
        """Note whether an env has gone on, before its step's row, which says so, becomes the manager's to write."""
        self.catch_up(&self.envs[env_id], env_id)

    def go_on(self, const uint32_t[::1] ids, bint on):
        """Have these envs' workers carry out the reset after an episode's last step at once, from the next step on.

        It has no payload. The next RESET for the env, onto the plane after its own, takes its answer, unless this was
        switched off or declined by then. Only without autoreset.
        """
        cdef uint32_t k
        for k in range(<uint32_t>ids.shape[0]):
            self.envs[ids[k]].goes_on = on

    def decline(self, const uint32_t[::1] ids):
        """Have the next RESET of these envs carried out, also where an env has gone on by itself."""
        cdef uint32_t k
        cdef Env *env
        for k in range(<uint32_t>ids.shape[0]):
            env = &self.envs[ids[k]]
            self.catch_up(env, ids[k])
            if env.gone_on:
                env.gone_on = VOID

    def take_resets(self, const uint32_t[::1] ids, uint32_t[::1] out):
        """Take the resets by which these envs have gone on, where they are done and their rows hold arrays alone.

        Returns how many there are; their ids stand in `out`, and their rows on the planes that they have now.
        """
        cdef uint32_t k, i, plane, found = 0
        cdef Env *env
        self.serial += 1
        for k in range(<uint32_t>ids.shape[0]):
            i, env = ids[k], &self.envs[ids[k]]
            self.catch_up(env, i)
            plane = (env.plane + 1) % self.planes
            if env.gone_on != TAKEABLE or not env.goes_on or not shm_answered(env.rsp, env.following):
                continue
            if self.flags[plane * self.num_envs + i]:
                continue
            env.gone_on = NOT
            env.given = shm_count_reset(env.given, env.following)
            env.previous, env.plane = env.plane, plane
            self.written[plane * self.num_envs + i] = self.serial
            shm_command(env.cmd, env.given)
            out[found] = i
            found += 1
        return found

    cdef look_for_damage(self, int64_t now):
        """Alert where an answer was taken back: with others at hand, no wait for it is long enough for a heartbeat."""
        cdef uint32_t i
        self.looked_ns = now
        for i in range(self.num_envs):
            if self.has_taken_back(i):
                shm_alert(self.results)

    def cores_used(self):
        """The core on which each worker took up its last commands."""
        return [shm_core(self.workers[w]) for w in range(self.num_workers)]

    def renew(self, uint32_t env_id, bint keep, bint has_payload):
        """Give one env a reset in place of the command whose answer the caller is owed, onto the same row.

        Args:
            keep: reward, flags and final row are there already, and stay.
            has_payload: whether a payload lies in the inbound area.
        """
        cdef Env *env = &self.envs[env_id]
        env.op[0] = SHM_OP_RESET | env.plane << 8 | (SHM_KEEP_ROW if keep else 0) | (SHM_HAS_PAYLOAD if has_payload else 0)
        env.given += 1
        env.owed = env.given
        shm_command(env.cmd, env.given)
        shm_ring_bell(self.workers[env.worker], os_now_ns())

    def owe(self, uint32_t env_id):
        """Owe the caller an answer that no worker gives: its row, on the env's next plane, is the manager's to write.

        Returns the plane. The env has answered its last command.
        """
        cdef Env *env = &self.envs[env_id]
        self.serial += 1
        env.previous, env.plane = env.plane, (env.plane + 1) % self.planes
        self.written[env.plane * self.num_envs + env_id] = self.serial
        env.owed, env.given_ns = env.given, os_now_ns()
        if env.state != OWED:
            env.state = OWED
            self.pending += 1
        return env.plane

    def defer(self, uint32_t env_id):
        """Let an owed answer wait for a command that is still to come, by `renew`."""
        self.envs[env_id].owed = self.envs[env_id].given + 1

    def answer(self, uint32_t env_id):
        """Take what an env owes for answered: its worker is confirmed dead, and its row the manager's to complete."""
        cdef Env *env = &self.envs[env_id]
        shm_reset_channel(env.cmd, env.rsp)
        env.owed = env.given

    # -- waiting

    def await_answers(self, const uint32_t[::1] ids, uint32_t need, int64_t deadline_ns):
        """Wait until `need` answers are in: of these envs' last commands, or (None) of what is owed to the caller.

        Blocks: without the GIL, until then (READY), an alert (another value: acknowledge it and look why), the deadline in
        CLOCK_MONOTONIC nanoseconds (TIMEOUT; FOREVER and 0 are such deadlines), or a heartbeat (HEARTBEAT). Ctrl-C
        raises KeyboardInterrupt; nothing is lost by it.
        """
        cdef Scan scan
        cdef uint32_t found
        cdef int how
        cdef uint64_t spins
        scan.envs = self.envs
        scan.ids, scan.count = NULL, self.num_envs
        if ids is not None:
            scan.ids, scan.count = &ids[0], <uint32_t>ids.shape[0]
        if count_answers(&scan) >= need:
            self.wait.began_ns = 0
            return SHM_READY
        self.wait.deadline_ns, spins = deadline_ns, self.wait.spins
        shm_begin_wait(&self.wait, os_now_ns())
        while True:
            with nogil:
                how = shm_await(self.results, need, self.seen_alert, count_answers, &scan, &self.wait, &found)
            if how == SHM_INTERRUPTED or how == SHM_HEARTBEAT:
                PyErr_CheckSignals()
                if how == SHM_INTERRUPTED:
                    continue
            if how == SHM_READY:
                self.note_wait(self.wait.spins != spins)
            return how

    cdef void note_wait(self, bint spun) noexcept:
        """Learn from the wait that has just ended. When the k-th answer came is known only where k is all of them."""
        cdef int64_t now = os_now_ns(), done = 0
        cdef uint32_t k
        for k in range(self.num_workers if self.whole else 0):
            done = max(done, shm_done_ns(self.workers[k]))
        if not self.whole:
            done = now - (self.wait.gap_ns if self.wait.gap_ns >= SHM_SLICE_NS else 0)
        shm_end_wait(&self.wait, done, now, spun)

    def alerted(self):
        """Whether there is news that `acknowledge` has not seen."""
        return shm_alerts(self.results) != self.seen_alert

    def acknowledge(self):
        """Take note of all alerts so far. Called before looking for their reasons, so that none is missed."""
        self.seen_alert = shm_alerts(self.results)

    def alert(self):
        """End a wait of the pool's thread."""
        shm_alert(self.results)

    # -- answers

    def ready(self, uint32_t[::1] out):
        """Find envs whose owed answers are in: len(out) of them at most, from a rotating start, so that none starves.

        Returns how many were found; their ids stand in `out`, ascending.
        """
        cdef uint32_t k, i = 0, found = 0, most = <uint32_t>out.shape[0], begin = self.start
        cdef Env *env
        with nogil:
            for k in range(self.num_envs):
                i = begin + k
                if i >= self.num_envs:
                    i -= self.num_envs
                env = &self.envs[i]
                env.chosen = found < most and env.state == OWED and shm_answered(env.rsp, env.owed)
                if env.chosen:
                    found += 1
                    self.start = i + 1 if i + 1 < self.num_envs else 0
            k = 0
            for i in range(self.num_envs):
                if self.envs[i].chosen:
                    out[k] = i
                    k += 1
        return found

    def first_owed(self, const uint32_t[::1] ids):
        """The first of these envs that owes the caller an answer; -1 if none does."""
        cdef uint32_t k
        for k in range(<uint32_t>ids.shape[0]):
            if self.envs[ids[k]].state == OWED:
                return ids[k]
        return -1

    def is_answered(self, uint32_t env_id):
        """Whether an env's owed answer is in."""
        return bool(shm_answered(self.envs[env_id].rsp, self.envs[env_id].owed))

    def is_busy(self, uint32_t env_id, uint32_t number):
        """Whether an env's last command bears this number, or the reset by which it goes on, and is not answered."""
        cdef Env *env = &self.envs[env_id]
        self.catch_up(env, env_id)
        if env.given != number and (env.gone_on != TAKEABLE or env.following != number):
            return False
        return not shm_answered(env.rsp, number)

    def goes_on(self, uint32_t env_id):
        """Whether an env was told to go on by itself."""
        return self.envs[env_id].goes_on

    def is_unanswered(self, uint32_t env_id):
        """Whether an env's last command is not answered."""
        return not shm_answered(self.envs[env_id].rsp, self.envs[env_id].given)

    def has_taken_back(self, uint32_t env_id):
        """Whether an env's last command counts as not answered though its worker, alive, waits for the next one."""
        cdef Env *env = &self.envs[env_id]
        return bool(shm_has_done_all(self.workers[env.worker]) and not shm_answered(env.rsp, env.given))

    def is_owed(self, uint32_t env_id):
        """Whether the caller still has to get an answer of this env."""
        return self.envs[env_id].state == OWED

    def owed(self):
        """All ids that owe an answer, ascending, with the seconds since each was asked."""
        cdef int64_t now = os_now_ns()
        cdef uint32_t i
        return [(i, (now - self.envs[i].given_ns) * 1e-9) for i in range(self.num_envs) if self.envs[i].state == OWED]

    def settle(self, const uint32_t[::1] ids):
        """The caller will never get the answers of these envs (None: all)."""
        cdef uint32_t k, i
        for k in range(self.num_envs if ids is None else <uint32_t>ids.shape[0]):
            i = k if ids is None else ids[k]
            if self.envs[i].state == OWED:
                self.envs[i].state = IDLE
                self.pending -= 1

    def deliver(self, const uint32_t[::1] ids):
        """The caller gets the answers of these envs (None: all) by the use at hand, if nothing interrupts that."""
        cdef uint32_t k, i
        for k in range(self.num_envs if ids is None else <uint32_t>ids.shape[0]):
            i = k if ids is None else ids[k]
            if self.envs[i].state == OWED:
                self.envs[i].state = IDLE
                self.envs[i].delivered = self.turn.uses
                self.pending -= 1

    def take_back(self, uint64_t use):
        """What was delivered by this use or later was not: the caller is owed it again."""
        cdef uint32_t i
        for i in range(self.num_envs):
            if self.envs[i].state == IDLE and self.envs[i].delivered >= use:
                self.envs[i].state, self.envs[i].delivered = OWED, 0
                self.pending += 1

    def row_flags(self, const uint32_t[::1] ids):
        """All flag bits of these envs' rows (None: of all envs), or-ed."""
        cdef uint32_t k, i, flags = 0
        for k in range(self.num_envs if ids is None else <uint32_t>ids.shape[0]):
            i = k if ids is None else ids[k]
            flags |= self.flags[self.envs[i].plane * self.num_envs + i]
        return flags

    def take_states(self, const uint32_t[::1] ids, uint8_t[::1] states, uint8_t ready, uint8_t needs_reset, uint8_t lost):
        """Set the states of these envs, but of those that are `lost`, to what their rows say: `ready` or `needs_reset`."""
        cdef uint32_t k, i, in_need
        for k in range(<uint32_t>ids.shape[0]):
            i = ids[k]
            if states[i] != lost:
                in_need = self.flags[self.envs[i].plane * self.num_envs + i] & SHM_ROW_NEEDS_RESET
                states[i] = needs_reset if in_need else ready

    def flags_of(self, uint32_t env_id):
        """The flag bits of one env's row."""
        return self.flags[self.envs[env_id].plane * self.num_envs + env_id]

    def code_of(self, uint32_t env_id):
        """What an env's last command was: RESET, STEP or CALL."""
        return SHM_OP_CODE(self.envs[env_id].op[0])

    def has_payload(self, uint32_t env_id):
        """Whether an env's last command was a reset with a payload, which lies in the inbound area still."""
        cdef uint32_t word = self.envs[env_id].op[0]
        return SHM_OP_CODE(word) == SHM_OP_RESET and (word & SHM_HAS_PAYLOAD) != 0

    def previous_plane(self, uint32_t env_id):
        """The plane of one env's last step or reset but one."""
        return self.envs[env_id].previous

    def plane_of(self, uint32_t env_id):
        """The plane of one env's last step or reset."""
        return self.envs[env_id].plane

    def on_plane(self, uint32_t plane, uint32_t[::1] out):
        """Find the envs whose last row lies on this plane. Returns how many; their ids stand in `out`, ascending."""
        cdef uint32_t i, found = 0
        for i in range(self.num_envs):
            if self.envs[i].plane == plane:
                out[found] = i
                found += 1
        return found

    def common_plane(self, const uint32_t[::1] ids):
        """The plane of these envs if their ids are consecutive and they share one, else -1."""
        cdef uint32_t k, n = <uint32_t>ids.shape[0], plane = self.envs[ids[0]].plane
        for k in range(1, n):
            if ids[k] != ids[0] + k or self.envs[ids[k]].plane != plane:
                return -1
        return plane

    def written_since(self, uint32_t first, uint32_t count, uint32_t plane, uint64_t serial):
        """Whether a command after `serial` writes one of these rows."""
        cdef uint32_t k
        for k in range(first, first + count):
            if self.written[plane * self.num_envs + k] > serial:
                return True
        return False

    @property
    def last_serial(self):
        """Serial number of the last `command`."""
        return self.serial

    def gather(self, const uint32_t[::1] ids, size_t source, target):
        """Copy the rows of these envs, each from its plane, behind one another.

        Args:
            source: offset in the segment of the field, laid out [plane][env][row].
            target: a contiguous array of as many rows.
        """
        cdef uint32_t k, i
        cdef Py_buffer view
        cdef size_t row_bytes
        cdef char *base = <char *><size_t>self.segment.address + source
        cdef char *out
        PyObject_GetBuffer(target, &view, PyBUF_WRITABLE)
        out, row_bytes = <char *>view.buf, <size_t>view.len // ids.shape[0]
        self.copied += view.len
        with nogil:
            for k in range(<uint32_t>ids.shape[0]):
                i = ids[k]
                memcpy(out + k * row_bytes, base + (<size_t>self.envs[i].plane * self.num_envs + i) * row_bytes, row_bytes)
        PyBuffer_Release(&view)

    def notes_of(self, const uint32_t[::1] ids, bint final, bint with_objects, spill):
        """The side areas of these envs' rows (None: of all envs): info records and object leaves, as two lists of bytes.

        Without objects the second list is empty. The lengths were written by another process: they are copied, the
        copies checked, and the copies used. Raises DamageError for the first env of which nothing can be made of them.
        """
        cdef uint32_t k, i, flags, a, b
        cdef uint32_t *heads = self.final_heads if final else self.heads
        cdef char *notes = self.final_notes if final else self.notes
        cdef uint32_t has = SHM_ROW_FINAL_NOTE if final else SHM_ROW_NOTE
        cdef uint32_t spilled = SHM_ROW_FINAL_SPILLED if final else SHM_ROW_SPILLED
        cdef size_t row
        cdef list infos = [], objects = []
        for k in range(self.num_envs if ids is None else <uint32_t>ids.shape[0]):
            i = k if ids is None else ids[k]
            row = <size_t>self.envs[i].plane * self.num_envs + i
            flags = shm_word(&self.flags[row])
            if not flags & has or heads == NULL:  # a flag of final rows where there are none: written over
                infos.append(b"")
                if with_objects:
                    objects.append(b"")
                continue
            a, b = shm_word(&heads[2 * row]), shm_word(&heads[2 * row + 1])
            if flags & spilled:
                try:
                    record = spill(i, self.envs[i].plane, final, <uint64_t>a + b)
                except ShmenvError as error:
                    raise DamageError(f"the side area of env {i} cannot be read: {error}", i) from error
                infos.append(record[:a])
                if with_objects:
                    objects.append(record[a:])
            elif <uint64_t>a + b > self.note_bytes:
                raise DamageError(f"the side area of env {i} claims {<uint64_t>a + b} bytes of {self.note_bytes}", i)
            else:
                infos.append(PyBytes_FromStringAndSize(notes + row * self.note_bytes, a))
                if with_objects:
                    objects.append(PyBytes_FromStringAndSize(notes + row * self.note_bytes + a, b))
        return infos, objects

    # -- life and death

    def order_quit(self):
        """Tell every worker to end after the command at hand."""
        cdef uint32_t w
        for w in range(self.num_workers):
            self.order_one_to_quit(w)

    def order_one_to_quit(self, uint32_t worker):
        """Tell one worker to end after the command at hand. What it resets by itself until then does not count."""
        cdef uint32_t i
        cdef Env *env
        for i in range(self.num_envs):
            env = &self.envs[i]
            if env.worker != worker:
                continue
            self.catch_up(env, i)
            if env.gone_on:
                env.gone_on = VOID
        shm_give_order(self.workers[worker], SHM_QUIT)
        shm_ring_bell(self.workers[worker], os_now_ns())

    def reset_worker(self, uint32_t worker):
        """Make a worker's channels ready for a successor: answered up to the last command, not parked, generation + 1.

        Called by: the manager, once the old process is confirmed dead.
        """
        cdef uint32_t i
        for i in range(self.num_envs):
            if self.envs[i].worker == worker:
                shm_reset_channel(self.envs[i].cmd, self.envs[i].rsp)
                self.envs[i].op[0] &= ~SHM_GO_ON
                self.envs[i].gone_on = NOT
        shm_reset_worker(self.workers[worker])

    def expect_worker(self, uint32_t worker, uint32_t env_id):
        """Time a successor from now on: until it says otherwise, it builds its first env, `env_id`.

        Called by: the manager, before it starts the process. Commands may be given from then on, or before.
        """
        shm_doing(self.workers[worker], 0, env_id, SHM_CONSTRUCT, os_now_ns())

    def has_ended(self, uint32_t env_id):
        """Whether the first of the two commits of a same-step autoreset is there for the env's last command."""
        return bool(shm_has_ended(self.envs[env_id].ended, self.envs[env_id].given))

    def account(self, uint32_t worker):
        """A worker's counters: (doing, steps, busy_ns, wait_ns, spins, parks, generation)."""
        cdef uint64_t values[6]
        shm_read_account(self.workers[worker], values)
        return (values[0], values[1], values[2], values[3], values[4], values[5], shm_generation(self.workers[worker]))

    @property
    def waits(self):
        """What the pool's own waits cost so far: (spins, parks, heartbeats)."""
        return self.wait.spins, self.wait.parks, self.wait.heartbeats
