"""The worker's inner loop: take a command, call the env, check, write the row, publish."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy
from shmenv._channel cimport (
    SHM_OP_RESET, SHM_OP_STEP, SHM_HAS_PAYLOAD, SHM_KEEP_ROW, SHM_WHOLE, SHM_GO_ON, SHM_OP_CODE, SHM_OP_PLANE,
    SHM_ROW_ERROR, SHM_ROW_NOTE, SHM_ROW_SPILLED, SHM_ROW_FINAL_NOTE, SHM_ROW_FINAL_SPILLED, SHM_ROW_NEEDS_RESET, a32, shm_semaphore, shm_wait,
    shm_worker, SHM_READY, SHM_INTERRUPTED, SHM_QUIT, SHM_IDLE, SHM_STEP, INT64_MAX, os_now_ns, os_core, shm_post, shm_bell,
    shm_order, shm_await_bell, shm_commanded, shm_is_new, shm_doing, shm_doing_nothing, shm_count_step, shm_note_core,
    shm_note_done, shm_rung_ns, shm_begin_wait, shm_end_wait, shm_account, shm_respond, shm_responded, shm_end
)

import numpy

from shmenv._info import pack_info, unpack_info

cdef extern from "Python.h":
    object PyObject_CallMethodOneArg(object obj, object name, object argument)
    bint PyFloat_Check(object value)
    double PyFloat_AS_DOUBLE(object value)

cdef extern from "pthread.h" nogil:
    int pthread_atfork(void (*before)() noexcept, void (*parent)() noexcept, void (*child)() noexcept)

cdef extern from "points.h" nogil:
    const int SHM_TAKEN, SHM_HALF_WRITTEN, SHM_ENDED, SHM_WRITTEN, SHM_PUBLISHED, SHM_POSTED
    void shm_point(int)

cdef extern from "ndarray.h":
    ctypedef struct shm_ndarray:
        char *data
        int nd
        Py_ssize_t *dimensions
        PyObject *descr
        int flags
    const int SHM_C_CONTIGUOUS

cdef object ndarray = numpy.ndarray
cdef object int64 = numpy.int64
cdef list small_int64 = [numpy.int64(i) for i in range(256)]  # immutable, so every step may hand out the same ones

cdef _check_ndarray():
    probe = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)[1:]
    cdef shm_ndarray *a = <shm_ndarray *><PyObject *>probe
    if not (
        <size_t>a.data == <size_t>probe.ctypes.data and a.nd == 2 and a.dimensions[0] == 1 and a.dimensions[1] == 3
        and a.descr == <PyObject *>probe.dtype and (a.flags & 0x3ff) == (probe.flags.num & 0x3ff)
    ):
        raise ImportError("this numpy lays out its arrays in another way; shmenv needs numpy 1.26 to 2.x")

_check_ndarray()

cdef bint watches_forks = False
cdef bint is_forked = False  # whether this process is one that an env has forked

cdef void note_fork() noexcept nogil:
    global is_forked
    is_forked = True

cdef enum: SAME_STEP = 0, NEXT_STEP = 1, DISABLED = 2

cdef inline bint is_rich(tuple result):
    """Whether what a step returned says more than rows hold: a reward that is no float, an info that is not empty."""
    return type(result[1]) is not float or type(result[4]) is not dict or len(<dict>result[4]) != 0


cdef bint flag(value) except -1:
    """A flag that is no bool of Python's. A dict is none: then the five values are others than those of a step."""
    if isinstance(value, dict):
        raise TypeError("step must return (obs, reward, terminated, truncated, info); where a flag should be is a dict")
    return bool(value)


@cython.final
cdef class Loop:
    """Runs one worker's envs until the manager orders it to quit.

    Called by: the worker process, its main thread. `worker` does the rare parts in Python (see `worker.Worker`);
    `addresses` names the worker's places in the segment. Crash: killed before `shm_respond`, a command has not been
    answered; killed after it, it has.
    """

    cdef object worker, segment, actions, payload, observations, final_observations, spill_note
    cdef list steppers, normalize, action_rows, binders
    cdef shm_worker *me
    cdef shm_semaphore *results
    cdef a32 *cmd
    cdef a32 *rsp
    cdef a32 *ended
    cdef uint32_t *episode_step  # steps begun since the last reset; for error texts
    cdef uint32_t *op
    cdef uint32_t *flags
    cdef uint32_t *heads
    cdef uint32_t *final_heads
    cdef char *notes
    cdef char *final_notes
    cdef double *reward
    cdef uint8_t *terminated
    cdef uint8_t *truncated
    cdef char *obs
    cdef char *final_obs
    cdef char *discrete
    cdef uint32_t *answered
    cdef uint8_t *over
    cdef uint32_t first, count, num_envs, planes, autoreset, note_bytes
    cdef object obs_dtype
    cdef Py_ssize_t obs_shape[32]
    cdef int obs_nd
    cdef Py_ssize_t obs_bytes
    cdef shm_wait wait
    cdef bint timed, retries, picky
    cdef bint goes_on  # a reset has to follow the last step
    cdef uint8_t *following  # the plane of that reset, counted from 1, until it is carried out; 0: none is to be

    def __cinit__(self, worker, segment, dict at, *, uint32_t num_envs, uint32_t planes, uint32_t autoreset, uint32_t note_bytes,
                  waits, bint timed, bint retries):
        cdef size_t base = segment.address
        cdef uint32_t first = at["first"], count = at["count"]
        self.worker, self.segment = worker, segment
        self.first, self.count, self.num_envs, self.autoreset = first, count, num_envs, autoreset
        self.planes, self.note_bytes, self.timed, self.retries = planes, note_bytes, timed, retries
        self.me = <shm_worker *>(base + <size_t>at["worker"])
        self.results = <shm_semaphore *>(base + <size_t>at["semaphore"])
        self.cmd, self.op = <a32 *>(base + <size_t>at["cmd"]), <uint32_t *>(base + <size_t>at["op"])
        self.rsp, self.ended = <a32 *>(base + <size_t>at["rsp"]), <a32 *>(base + <size_t>at["ended"])
        self.episode_step = <uint32_t *>(base + <size_t>at["episode_step"])
        self.flags = <uint32_t *>(base + <size_t>at["flags"])
        self.heads, self.notes = <uint32_t *>(base + <size_t>at["heads"]), <char *>(base + <size_t>at["notes"])
        self.final_heads = <uint32_t *>(base + <size_t>at["final_heads"]) if "final_heads" in at else NULL
        self.final_notes = <char *>(base + <size_t>at["final_notes"]) if "final_notes" in at else NULL
        self.reward = <double *>(base + <size_t>at["reward"]) if worker.reward_shape == () else NULL
        self.terminated = <uint8_t *>(base + <size_t>at["terminated"])
        self.truncated = <uint8_t *>(base + <size_t>at["truncated"])
        self.actions, self.payload, self.spill_note = worker.actions.read, worker.payload, worker.spill_note
        self.observations, self.final_observations = worker.observations.write, worker.final_observations
        # Fast ways for the two commonest actions, Discrete and Box; everything else goes through the reader.
        self.discrete, self.action_rows = NULL, None
        if worker.single_action is not None:
            if worker.single_action.shape[1:] == () and worker.single_action.dtype == numpy.int64:
                self.discrete = <char *><size_t>worker.single_action.ctypes.data
            elif worker.single_action.ndim > 1:
                self.action_rows = [worker.single_action[first + k].copy for k in range(count)]
        # A fast way for an observation that is one array; `obs` is NULL where it does not apply.
        self.obs, self.final_obs = NULL, NULL
        rows = worker.single_observation
        if rows is not None and rows.ndim - 2 <= 32 and rows.flags.c_contiguous:
            self.obs, self.obs_dtype, self.obs_nd = <char *><size_t>rows.ctypes.data, rows.dtype, rows.ndim - 2
            self.obs_bytes = rows.dtype.itemsize
            for k in range(self.obs_nd):
                self.obs_shape[k] = rows.shape[2 + k]
                self.obs_bytes *= self.obs_shape[k]
            if worker.single_final_observation is not None:
                self.final_obs = <char *><size_t>worker.single_final_observation.ctypes.data
        self.answered = <uint32_t *>PyMem_Calloc(count, sizeof(uint32_t))
        self.over = <uint8_t *>PyMem_Calloc(count, 1)
        self.following = <uint8_t *>PyMem_Calloc(count, 1)
        if self.answered == NULL or self.over == NULL or self.following == NULL:
            raise MemoryError
        for k in range(count):
            self.answered[k] = shm_responded(&self.rsp[k])
        self.wait.spin_ns, self.wait.patience_ns, self.wait.late_ns, self.wait.heartbeat_ns = waits
        self.wait.deadline_ns, self.wait.expected_ns = INT64_MAX, self.wait.spin_ns

    def __dealloc__(self):
        PyMem_Free(self.answered)
        PyMem_Free(self.over)
        PyMem_Free(self.following)

    def run(self):
        """Serve commands until the order to quit. Blocks: without the GIL while there is nothing to do."""
        cdef uint32_t k, n, seen, word, unposted
        cdef int64_t since = os_now_ns(), idle, now = 0
        cdef int how
        cdef uint64_t spins
        cdef bint busy, following
        global watches_forks, is_forked
        if not watches_forks:
            pthread_atfork(NULL, NULL, note_fork)
        watches_forks, is_forked = True, False
        self.binders = self.worker.binders
        self.steppers = [env.stepper for env in self.worker.envs]
        self.normalize = [env.five_tuple for env in self.worker.envs]
        self.picky = any([env.picky for env in self.worker.envs])
        while True:
            seen, busy, following, unposted = shm_bell(self.me), False, False, 0
            for k in range(self.count):
                if shm_order(self.me) == SHM_QUIT:
                    return
                n = shm_commanded(&self.cmd[k])
                if not shm_is_new(n, self.answered[k]):
                    continue
                word, busy = self.op[k], True
                if unposted and not word & SHM_WHOLE:  # who waits for a whole batch does not wait for what else was asked
                    unposted = self.post(unposted)
                if SHM_OP_CODE(word) == SHM_OP_STEP and not (self.autoreset == NEXT_STEP and self.over[k]):
                    shm_doing(self.me, n, self.first + k, SHM_STEP, os_now_ns() if self.timed else 0)
                    shm_point(SHM_TAKEN)
                    self.step(k, n, word)
                    shm_count_step(self.me)
                else:
                    shm_point(SHM_TAKEN)
                    self.worker.command(
                        self.first + k, n, SHM_OP_CODE(word), SHM_OP_PLANE(word), (word & SHM_HAS_PAYLOAD) != 0,
                        (word & SHM_KEEP_ROW) != 0
                    )
                self.publish(k, n)
                unposted += 1
                if not word & SHM_WHOLE:
                    unposted = self.post(unposted)
                if self.goes_on:
                    self.goes_on, following = False, True
                    self.following[k] = 1 + (SHM_OP_PLANE(word) + 1) % self.planes
                if self.timed:  # stopped here, it leaves what else it was asked lying: not what it has just done is late
                    shm_doing(self.me, seen - 1, 0, SHM_IDLE, os_now_ns())
            if busy:
                shm_note_core(self.me, os_core())
                now = os_now_ns()
                shm_note_done(self.me, now)
            if unposted:  # one for all: the posts of several workers would contend for their cache line
                self.post(unposted)
            if following:  # only now, so that no step waits for another env's reset
                self.go_on()
            if busy:
                shm_account(self.me, now - since, 0, &self.wait)
                since = now
                continue
            if shm_order(self.me) == SHM_QUIT:
                return
            shm_doing_nothing(self.me, seen)
            idle, spins = os_now_ns(), self.wait.spins
            shm_begin_wait(&self.wait, idle)
            with nogil:
                how = shm_await_bell(self.me, seen, &self.wait)
            now = os_now_ns()
            if how == SHM_READY:
                shm_end_wait(&self.wait, shm_rung_ns(self.me), now, self.wait.spins != spins)
            shm_account(self.me, idle - since, now - idle, &self.wait)
            since = now
            if how == SHM_INTERRUPTED:
                PyErr_CheckSignals()

    cdef inline void publish(self, uint32_t k, uint32_t n) noexcept:
        self.answered[k] = n
        shm_point(SHM_WRITTEN)
        shm_respond(&self.rsp[k], n)  # commit point
        shm_point(SHM_PUBLISHED)

    cdef inline uint32_t post(self, uint32_t answers) noexcept:
        """How many are left to be posted: none."""
        shm_post(self.results, answers)
        shm_point(SHM_POSTED)
        return 0

    cdef go_on(self):
        """Carry out the resets that follow the last steps: commands that the manager will not give, but count."""
        cdef uint32_t k, n
        for k in range(self.count):
            if self.following[k] and shm_order(self.me) != SHM_QUIT:
                n = self.answered[k] + 1
                self.worker.command(self.first + k, n, SHM_OP_RESET, self.following[k] - 1, False, False)
                self.following[k] = 0
                self.publish(k, n)
                self.post(1)

    def doing(self, uint32_t number, uint32_t env_id, uint32_t phase):
        """Publish what this worker is about to call."""
        shm_doing(self.me, number, env_id, phase, os_now_ns())

    def set_over(self, uint32_t env_id, bint over):
        """Remember that an env's episode is over, so that its next step resets it (autoreset next_step)."""
        self.over[env_id - self.first] = over
        if not over:
            self.episode_step[env_id - self.first] = 0

    cdef step(self, uint32_t k, uint32_t n, uint32_t word):
        cdef uint32_t env_id = self.first + k, plane = SHM_OP_PLANE(word), flags = 0
        cdef size_t row = <size_t>plane * self.num_envs + env_id
        cdef int64_t choice
        cdef uint8_t terminated, truncated
        cdef bytes payload
        command = "step"
        self.episode_step[k] += 1
        try:
            if word & SHM_HAS_PAYLOAD:
                payload = self.payload(env_id)
                if PyBytes_AS_STRING(payload)[0] != b"L":  # an object, see action.py
                    action = unpack_info(payload)
                else:
                    action = self.actions(env_id, payload)
            elif self.discrete != NULL:
                choice = (<int64_t *>self.discrete)[env_id]
                action = small_int64[choice] if 0 <= choice < 256 else int64(choice)
            elif self.action_rows is not None:
                action = self.action_rows[k]()
            else:
                action = self.actions(env_id, b"")
            if self.binders is not None and self.binders[k] is not None:
                self.binders[k](plane)
            if self.retries:
                result = self.worker.step_with_retries(k, n, action)
            else:
                # Looked up each time: an env, or set_attr, may have put another in its place.
                result = PyObject_CallMethodOneArg(self.steppers[k], "step", action)
            if is_forked:  # and has come back from the env's code
                self.worker.leave_if_forked()
            if type(result) is not tuple or len(<tuple>result) != 5 or (self.picky and is_rich(<tuple>result)):
                result = self.normalize[k](result)
            obs, reward, is_terminated, is_truncated, info = <tuple>result
            if self.reward != NULL and PyFloat_Check(reward):
                self.reward[row] = PyFloat_AS_DOUBLE(reward)
            else:
                self.worker.write_reward(plane, env_id, reward)
            terminated = is_terminated is True or (is_terminated is not False and flag(is_terminated))
            truncated = is_truncated is True or (is_truncated is not False and flag(is_truncated))
            # Stored only when they change: their cache lines are shared with the other workers.
            if self.terminated[row] != terminated:
                self.terminated[row] = terminated
            if self.truncated[row] != truncated:
                self.truncated[row] = truncated
            shm_point(SHM_HALF_WRITTEN)
            if terminated or truncated:
                self.over[k] = 1
                if self.autoreset == SAME_STEP:
                    flags = self.write_final(row, env_id, plane, obs, info)
                    self.flags[row] = flags
                    shm_end(&self.ended[k], n)  # commit point of the ended step; the reset follows
                    shm_point(SHM_ENDED)
                    command = "reset"
                    obs, info = self.worker.autoreset(env_id, plane, n)
                    self.over[k] = self.episode_step[k] = 0
                elif self.autoreset == DISABLED:
                    flags = SHM_ROW_NEEDS_RESET
            self.write(row, env_id, plane, obs, info, flags)
            self.goes_on = flags & SHM_ROW_NEEDS_RESET and word & SHM_GO_ON
        except BaseException as error:
            self.worker.failed(env_id, plane, error, command, command == "reset")

    cdef bint put(self, char *rows, size_t row, object obs) except -1:
        """Copy an observation that is exactly the declared array into its row; False if it is anything else."""
        cdef shm_ndarray *a = <shm_ndarray *><PyObject *>obs
        cdef char *target = rows + row * self.obs_bytes
        if type(obs) is not ndarray or a.nd != self.obs_nd or not (a.flags & SHM_C_CONTIGUOUS):
            return False
        if a.descr != <PyObject *>self.obs_dtype:
            if obs.dtype != self.obs_dtype:
                return False
            self.obs_dtype = obs.dtype  # a copy, as unpickled spaces have them; this env's next ones will have it too
        if self.obs_nd and memcmp(a.dimensions, self.obs_shape, self.obs_nd * sizeof(Py_ssize_t)) != 0:
            return False
        if a.data != target:  # an env with bind_observation has written it there itself
            memcpy(target, a.data, self.obs_bytes)
        return True

    cdef write(self, size_t row, uint32_t env_id, uint32_t plane, obs, info, uint32_t flags):
        cdef bytes objects = b""
        if self.obs == NULL or not self.put(self.obs, row, obs):
            objects = self.observations(obs, plane, env_id)
        if (type(info) is not dict and info is not None) or info or objects:
            flags |= self.note(self.heads, self.notes, row, env_id, plane, False, pack_info({} if info is None else info), objects)
        if self.flags[row] != flags:
            self.flags[row] = flags

    def write_row(self, uint32_t env_id, uint32_t plane, obs, info, bint keep):
        """Write the observation and info of a reset; `keep` what the step wrote that ended the episode."""
        cdef size_t row = <size_t>plane * self.num_envs + env_id
        cdef uint32_t kept = self.flags[row] & (SHM_ROW_FINAL_NOTE | SHM_ROW_FINAL_SPILLED) if keep else 0
        if not keep:
            self.terminated[row] = self.truncated[row] = False
        self.write(row, env_id, plane, obs, info, kept)

    cdef uint32_t write_final(self, size_t row, uint32_t env_id, uint32_t plane, obs, info) except? 0xffffffff:
        cdef bytes objects = b""
        if self.final_obs == NULL or not self.put(self.final_obs, row, obs):
            objects = self.final_observations(obs, plane, env_id)
        if (type(info) is not dict and info is not None) or info or objects:
            return self.note(self.final_heads, self.final_notes, row, env_id, plane, True, pack_info({} if info is None else info), objects)
        return 0

    cdef uint32_t note(self, uint32_t *heads, char *notes, size_t row, uint32_t env_id, uint32_t plane, bint final,
                       bytes info, bytes objects) except? 0xffffffff:
        """Put info and object leaves into the row's side area, or into the spill if they are too long for it."""
        cdef Py_ssize_t a = PyBytes_GET_SIZE(info), b = PyBytes_GET_SIZE(objects)
        cdef char *target = notes + row * self.note_bytes
        if a + b == 0:
            return 0
        cdef bint spilled = a + b > self.note_bytes
        if spilled:
            self.spill_note(env_id, plane, final, info + objects)
        else:
            memcpy(target, PyBytes_AS_STRING(info), a)
            memcpy(target + a, PyBytes_AS_STRING(objects), b)
        heads[2 * row], heads[2 * row + 1] = <uint32_t>a, <uint32_t>b
        if final:
            return SHM_ROW_FINAL_NOTE | (SHM_ROW_FINAL_SPILLED if spilled else 0)
        return SHM_ROW_NOTE | (SHM_ROW_SPILLED if spilled else 0)

    def write_error(self, uint32_t env_id, uint32_t plane, bytes record, bint keep):
        """Write an error record as the row's note; `keep` the flags of the row's final note."""
        cdef size_t row = <size_t>plane * self.num_envs + env_id
        cdef uint32_t kept = self.flags[row] & (SHM_ROW_FINAL_NOTE | SHM_ROW_FINAL_SPILLED) if keep else 0
        self.flags[row] = SHM_ROW_ERROR | kept | self.note(self.heads, self.notes, row, env_id, plane, False, record, b"")
