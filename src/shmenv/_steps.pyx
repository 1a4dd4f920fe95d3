"""What a manager does for each env of each step, in one pass each."""

from cpython.dict cimport PyDict_GetItem, PyDict_Next
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_alloc)(PyTypeObject *, Py_ssize_t)


def chosen(dict actions not None, dict states not None, run, dict undelivered not None):
    """Sort actions by env: (ids, actions). None if an id is no int, or an env is not in state `run`, or undelivered."""
    cdef Py_ssize_t at = 0
    cdef PyObject *key
    cdef PyObject *value
    cdef list ids = [], values = []
    cdef long last = -1
    cdef bint ascending = True
    while PyDict_Next(actions, &at, &key, &value):
        i = <object>key
        if type(i) is not int or PyDict_GetItem(states, i) != <PyObject *>run or (undelivered and i in undelivered):
            return None
        ids.append(i)
        values.append(<object>value)
        ascending = ascending and i > last  # it is in `states`, so it is no larger than they are many
        last = i
    if ascending:
        return ids, values
    ids.sort()
    return ids, [actions[i] for i in ids]


def ready(dict states not None, run, dict observations not None, dict undelivered not None):
    """The observations of the envs that are in state `run` and not undelivered, in the order of `states`."""
    cdef Py_ssize_t at = 0
    cdef PyObject *key
    cdef PyObject *state
    cdef dict found = {}
    while PyDict_Next(states, &at, &key, &state):
        if state == <PyObject *>run:
            i = <object>key
            if not (undelivered and i in undelivered):
                found[i] = observations[i]
    return found


def mark(dict states not None, list ids not None, state, ended=(), odd=()):
    """Put these envs into a state, but for those that are in `ended` or `odd`."""
    cdef bint some_ended = bool(ended), some_odd = bool(odd)
    for i in ids:
        if not (some_ended and i in ended or some_odd and i in odd):
            states[i] = state


def plain_timesteps(cls, list observations not None, list rewards not None, list dones not None):
    """A timestep for each row, each with an empty info. `cls` is a named tuple of four."""
    cdef Py_ssize_t row
    cdef PyTypeObject *kind = <PyTypeObject *><PyObject *>cls
    cdef list timesteps = []
    for row in range(PyList_GET_SIZE(observations)):
        timestep = kind.tp_alloc(kind, 4)
        put(timestep, 0, observations[row])
        put(timestep, 1, rewards[row])
        put(timestep, 2, dones[row])
        put(timestep, 3, {})
        timesteps.append(timestep)
    return timesteps


cdef inline void put(object timestep, Py_ssize_t at, object value) noexcept:
    Py_INCREF(value)  # the tuple's own
    PyTuple_SET_ITEM(timestep, at, value)
