"""Info dicts, and objects of any kind, as compact records: packed in one pass, unpacked when somebody looks.

A record is b"" for an empty dict; else one byte, 'D' for a dict, 'V' for any object, or 'P' for a pickle. A dict's
entries follow until the end: kind (1 byte), length of the key (4), the key as UTF-8, the value by its kind; behind a 'V'
stand the kind and the value of the one object:

    none false true   nothing
    int float         8 bytes
    text bytes        length (8), UTF-8 or the bytes
    scalar            numpy type number (1), its bytes
    array             numpy type number (1), dimensions (1), lengths (8 each), the elements in C order
    dict pickle       length (8), a record or a pickle

All numbers stand in the machine's own order: records never leave the machine. Whoever unpacks checks every length, so
any bytes at all give a value or a ValueError; only pickles are trusted to come from a worker of the own pool.
"""

cimport cython
from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_ND, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

import numpy as np

from shmenv import codec

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    long long PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1

cdef extern from "ndarray.h":
    ctypedef struct shm_ndarray:
        char *data

cdef enum Kind:
    NONE = 0
    FALSE = 1
    TRUE = 2
    INT = 3
    FLOAT = 4
    TEXT = 5
    BYTES = 6
    SCALAR = 7
    ARRAY = 8
    DICT = 9
    PICKLE = 10

cdef enum:
    INLINE = 1000  # bytes of a record built on the stack; almost every info fits
    DEEPEST = 20   # nested dicts below are pickled, which finds cycles; so no record unpacks into a deep recursion

# numpy's own type number (dtype.num) keeps np.int64 and np.longlong apart, which share one size and format.
cdef dict TYPES = {np.dtype(char).num: np.dtype(char) for char in "?bBhHiIlLqQefdgFDG"}
cdef dict NUMBER_OF_TYPE = {dtype.type: number for number, dtype in TYPES.items()}
cdef dict NUMBER_OF_FORMAT = {memoryview(np.empty(1, dtype)).format.encode(): number for number, dtype in TYPES.items()}
cdef object ARRAY_TYPE = np.ndarray
cdef object INT64 = np.int64, FLOAT64 = np.float64
cdef uint8_t INT64_CODE = np.dtype(np.int64).num, FLOAT64_CODE = np.dtype(np.float64).num
cdef list SMALL_INT64 = [np.int64(i) for i in range(256)]  # immutable, so each record may unpack into the same ones


cdef struct Record:
    char *data
    size_t size
    size_t capacity
    uint32_t pickles  # values that were pickled
    char inline_data[INLINE]


cdef inline char *grow(Record *record, size_t size) except NULL:
    """Room for `size` more bytes; returns where they start."""
    cdef size_t start = record.size, capacity
    cdef char *data
    if size > record.capacity - start:
        capacity = (start + size) * 2
        if record.data == record.inline_data:
            data = <char *>PyMem_Malloc(capacity)
            if data != NULL:
                memcpy(data, record.data, start)
        else:
            data = <char *>PyMem_Realloc(record.data, capacity)
        if data == NULL:
            raise MemoryError(f"an info record of {start + size} bytes")
        record.data = data
        record.capacity = capacity
    record.size = start + size
    return record.data + start


cdef inline int put(Record *record, const void *data, size_t size) except -1:
    memcpy(grow(record, size), data, size)
    return 0


cdef inline int put_sized(Record *record, const void *data, uint64_t size) except -1:
    put(record, &size, 8)
    put(record, data, size)
    return 0


cdef int put_entry(Record *record, uint8_t kind, const char *key, uint32_t key_size) except -1:
    """Puts what stands before a value: kind and key, or the kind alone where the key is NULL."""
    cdef char *to = grow(record, 1 if key == NULL else 5 + key_size)
    to[0] = <char>kind
    if key == NULL:
        return 0
    memcpy(to + 1, &key_size, 4)
    memcpy(to + 5, key, key_size)
    return 0


cdef bint put_array(Record *record, object value, const char *key, uint32_t key_size) except -1:
    """Puts a numeric array. False: it is of another dtype, nothing was put."""
    cdef Py_buffer view
    cdef uint8_t number, ndim
    cdef int64_t length
    cdef int axis
    try:
        PyObject_GetBuffer(value, &view, PyBUF_FORMAT | PyBUF_ND | PyBUF_C_CONTIGUOUS)
    except (ValueError, BufferError):
        if value.flags.c_contiguous:  # datetime64 and its like have no buffers
            return False
        return put_array(record, value.copy(), key, key_size)
    try:
        found = NUMBER_OF_FORMAT.get(<bytes>view.format)
        if found is None:
            return False
        number, ndim = found, view.ndim
        put_entry(record, ARRAY, key, key_size)
        put(record, &number, 1)
        put(record, &ndim, 1)
        for axis in range(view.ndim):
            length = view.shape[axis]
            put(record, &length, 8)
        put(record, view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return True


class _SharedError(Exception):
    """A record would hold an object twice, or cannot tell whether it does: only one pickle of all keeps it one."""


cdef bint put_nested(Record *record, dict value, const char *key, uint32_t key_size, int depth, set seen) except -1:
    """Puts a dict as a record of its own. False: it has to be pickled, nothing was put."""
    cdef size_t before = record.size, start
    cdef uint64_t size
    if id(value) in seen:
        raise _SharedError
    seen.add(id(value))
    put_entry(record, DICT, key, key_size)
    grow(record, 8)
    start = record.size
    if not put_dict(record, value, depth + 1, seen):
        record.size = before
        return False
    size = record.size - start
    memcpy(record.data + start - 8, &size, 8)
    return True


cdef bint put_dict(Record *record, dict info, int depth, set seen) except -1:
    """Puts a record. False: keys or depth call for a pickle, and what was put has to be taken back."""
    cdef Py_ssize_t key_size
    cdef const char *key
    if depth > DEEPEST:
        return False
    if not info:
        return True
    put(record, b"D", 1)
    for name, value in info.items():
        if type(name) is not str:
            return False
        try:
            key = PyUnicode_AsUTF8AndSize(name, &key_size)
        except UnicodeEncodeError:  # half of a surrogate pair
            return False
        if key_size > 0xFFFFFFFF:
            return False
        if not put_value(record, value, key, key_size, depth, seen):
            try:
                put_pickle(record, value, key, key_size)
            except TypeError as error:
                raise TypeError(f"[{name!r}]: {error}") from error
    return True


cdef bint put_value(Record *record, object value, const char *key, uint32_t key_size, int depth, set seen) except -1:
    """Puts a value of one of the kinds but pickles. False: it is of none, nothing was put."""
    cdef Py_ssize_t size
    cdef const char *text
    cdef long long number
    cdef int overflow
    cdef double real
    cdef uint8_t code
    cdef Py_buffer view
    kind = type(value)
    if kind is float:
        put_entry(record, FLOAT, key, key_size)
        real = PyFloat_AS_DOUBLE(value)
        put(record, &real, 8)
    elif kind is int:
        number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow != 0:
            return False
        put_entry(record, INT, key, key_size)
        put(record, &number, 8)
    elif value is None:
        put_entry(record, NONE, key, key_size)
    elif kind is bool:
        put_entry(record, TRUE if value else FALSE, key, key_size)
    elif kind is str:
        try:
            text = PyUnicode_AsUTF8AndSize(value, &size)
        except UnicodeEncodeError:
            return False
        put_entry(record, TEXT, key, key_size)
        put_sized(record, text, size)
    elif kind is bytes:
        put_entry(record, BYTES, key, key_size)
        put_sized(record, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    elif kind is ARRAY_TYPE:
        return put_array(record, value, key, key_size)
    elif kind is dict:
        return put_nested(record, value, key, key_size, depth, seen)
    else:
        found = NUMBER_OF_TYPE.get(kind)
        if found is None:
            return False
        code = found
        put_entry(record, SCALAR, key, key_size)
        put(record, &code, 1)
        PyObject_GetBuffer(value, &view, PyBUF_C_CONTIGUOUS)
        try:
            put(record, view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
    return True


cdef int put_pickle(Record *record, object value, const char *key, uint32_t key_size) except -1:
    cdef bytes pickled = codec.dump(value)
    record.pickles += 1
    if record.pickles > 1:  # two of them may refer to the same object
        raise _SharedError
    put_entry(record, PICKLE, key, key_size)
    return put_sized(record, PyBytes_AS_STRING(pickled), PyBytes_GET_SIZE(pickled))


cdef bytes pack(object value, bint is_info):
    cdef Record record
    record.data = record.inline_data
    record.size = record.pickles = 0
    record.capacity = INLINE
    try:
        if is_info:
            if put_dict(&record, <dict>value, 0, {id(value)}):
                return PyBytes_FromStringAndSize(record.data, record.size)
        else:
            put(&record, b"V", 1)
            if not put_value(&record, value, NULL, 0, 0, set()):
                put_pickle(&record, value, NULL, 0)
            return PyBytes_FromStringAndSize(record.data, record.size)
    except _SharedError:
        pass
    except TypeError as error:
        text = str(error)
        if not text.startswith("["):
            raise
        raise TypeError(("info" if is_info else "value") + text) from error
    finally:
        if record.data != record.inline_data:
            PyMem_Free(record.data)
    return b"P" + codec.dump(value)


def pack_object(value):
    """Pack an object of any kind into a record that is never empty."""
    return pack(value, False)


def pack_info(info):
    """Pack an info into a record."""
    if type(info) is not dict:
        return pack(info, False)
    return pack(info, True) if <dict>info else b""


cdef struct Cursor:
    const char *at
    const char *end


cdef inline const char *take(Cursor *cursor, uint64_t size) except NULL:
    """Where the next `size` bytes start, which are then behind the cursor."""
    cdef const char *start = cursor.at
    if size > <uint64_t>(cursor.end - start):
        raise ValueError(f"damaged info record: {size} bytes wanted, {cursor.end - start} left")
    cursor.at = start + size
    return start


cdef inline uint64_t take_size(Cursor *cursor) except? 0:
    cdef uint64_t size
    memcpy(&size, take(cursor, 8), 8)
    return size


cdef object take_dtype(Cursor *cursor):
    dtype = TYPES.get(<uint8_t>take(cursor, 1)[0])
    if dtype is None:
        raise ValueError("damaged info record: no such numpy type")
    return dtype


cdef object take_array(Cursor *cursor):
    cdef Py_buffer view
    cdef uint8_t ndim
    cdef int64_t length
    cdef uint64_t size
    cdef const char *data
    cdef object count = 1  # Python's integers: a damaged product may be huge
    dtype = take_dtype(cursor)
    ndim = <uint8_t>take(cursor, 1)[0]
    shape = []
    for _ in range(ndim):
        memcpy(&length, take(cursor, 8), 8)
        if length < 0:
            raise ValueError("damaged info record: a negative length")
        shape.append(length)
        count *= length
    count *= dtype.itemsize
    if count > cursor.end - cursor.at:
        raise ValueError("damaged info record: an array larger than the record")
    size = count
    data = take(cursor, size)
    array = np.empty(shape, dtype)  # ValueError for too many dimensions
    if size:
        PyObject_GetBuffer(array, &view, PyBUF_C_CONTIGUOUS)
        memcpy(view.buf, data, size)
        PyBuffer_Release(&view)
    return array


cdef object take_scalar(Cursor *cursor):
    cdef uint8_t code = <uint8_t>take(cursor, 1)[0]
    cdef int64_t number
    cdef double real
    cdef Py_ssize_t size
    if code == INT64_CODE:  # by far the commonest: an action of a Discrete space
        memcpy(&number, take(cursor, 8), 8)
        return SMALL_INT64[number] if 0 <= number < 256 else INT64(number)
    if code == FLOAT64_CODE:
        memcpy(&real, take(cursor, 8), 8)
        return FLOAT64(real)
    cursor.at -= 1
    dtype = take_dtype(cursor)
    size = dtype.itemsize
    return np.frombuffer(PyBytes_FromStringAndSize(take(cursor, size), size), dtype)[0]


cdef object take_pickle(Cursor *cursor, uint64_t size):
    cdef const char *data = take(cursor, size)
    try:
        return codec.load_foreign(PyBytes_FromStringAndSize(data, size))
    except Exception as error:  # an object of the user's may raise what it likes
        raise ValueError(f"a value cannot be unpickled: {type(error).__name__}: {error}") from error


cdef object take_value(Cursor *cursor, uint8_t kind, int depth):
    cdef Cursor inner
    cdef int64_t number
    cdef double real
    cdef uint64_t size
    if kind == NONE:
        return None
    if kind == FALSE:
        return False
    if kind == TRUE:
        return True
    if kind == INT:
        memcpy(&number, take(cursor, 8), 8)
        return number
    if kind == FLOAT:
        memcpy(&real, take(cursor, 8), 8)
        return real
    if kind == SCALAR:
        return take_scalar(cursor)
    if kind == ARRAY:
        return take_array(cursor)
    if kind > PICKLE:
        raise ValueError("damaged info record: no such kind of value")
    size = take_size(cursor)
    if kind == PICKLE:
        return take_pickle(cursor, size)
    if kind == DICT:
        inner.at = take(cursor, size)
        inner.end = cursor.at
        return take_dict(&inner, depth + 1)
    if kind == TEXT:
        return PyUnicode_DecodeUTF8(take(cursor, size), size, NULL)  # UnicodeDecodeError is a ValueError
    return PyBytes_FromStringAndSize(take(cursor, size), size)


cdef int skip_value(Cursor *cursor, uint8_t kind) except -1:
    cdef uint64_t size
    if kind == INT or kind == FLOAT:
        take(cursor, 8)
    elif kind == SCALAR:
        size = take_dtype(cursor).itemsize
        take(cursor, size)
    elif kind == ARRAY:
        take_array(cursor)
    elif kind > PICKLE:
        raise ValueError("damaged info record: no such kind of value")
    elif kind > TRUE:
        take(cursor, take_size(cursor))
    return 0


cdef inline const char *take_entry(Cursor *cursor, uint8_t *kind, uint32_t *key_size) except NULL:
    kind[0] = <uint8_t>take(cursor, 1)[0]
    memcpy(key_size, take(cursor, 4), 4)
    return take(cursor, key_size[0])


cdef object take_dict(Cursor *cursor, int depth):
    cdef uint8_t kind
    cdef uint32_t key_size
    cdef const char *key
    info = {}
    if depth > DEEPEST:
        raise ValueError("damaged info record: dicts nested too deep")
    if cursor.at == cursor.end:
        return info
    if take(cursor, 1)[0] != b"D":
        raise ValueError("damaged info record: no such kind of record")
    while cursor.at != cursor.end:
        key = take_entry(cursor, &kind, &key_size)
        name = PyUnicode_DecodeUTF8(key, key_size, NULL)
        info[name] = take_value(cursor, kind, depth)
    return info


def unpack_info(bytes record not None):
    """Unpack a record into the info."""
    cdef Cursor cursor
    cursor.at = PyBytes_AS_STRING(record)
    cursor.end = cursor.at + PyBytes_GET_SIZE(record)
    if cursor.at != cursor.end and cursor.at[0] == b"P":
        take(&cursor, 1)
        return take_pickle(&cursor, cursor.end - cursor.at)
    if cursor.at != cursor.end and cursor.at[0] == b"V":
        take(&cursor, 1)
        value = take_value(&cursor, <uint8_t>take(&cursor, 1)[0], 0)
        if cursor.at != cursor.end:
            raise ValueError("damaged info record: bytes behind the value")
        return value
    return take_dict(&cursor, 0)


def find_value(bytes record not None, str name not None, absent=None):
    """The value under one key, without unpacking the others."""
    cdef Cursor cursor
    cdef uint8_t kind
    cdef uint32_t key_size
    cdef const char *key
    cdef bytes wanted = name.encode("utf-8", "surrogatepass")
    cursor.at = PyBytes_AS_STRING(record)
    cursor.end = cursor.at + PyBytes_GET_SIZE(record)
    if cursor.at == cursor.end:
        return absent
    if cursor.at[0] != b"D":
        info = unpack_info(record)
        return info.get(name, absent) if isinstance(info, dict) else absent
    take(&cursor, 1)
    while cursor.at != cursor.end:
        key = take_entry(&cursor, &kind, &key_size)
        if PyBytes_FromStringAndSize(key, key_size) == wanted:
            return take_value(&cursor, kind, 0)
        skip_value(&cursor, kind)
    return absent


cdef object ZEROS = np.zeros, BOOL = np.dtype(bool)
cdef dict DTYPE_OF_KIND = {TRUE: BOOL, INT: np.dtype(np.int64), FLOAT: np.dtype(np.float64)}


@cython.final
cdef class _Column:
    """The values of one key, all of one kind."""

    cdef uint8_t kind, code      # code: numpy's type number, of a SCALAR
    cdef size_t itemsize
    cdef object values, mask     # arrays
    cdef char *data
    cdef char *present
    cdef dict nested             # columns, of a DICT


cdef _Column new_column(uint8_t kind, const Cursor *cursor, Py_ssize_t n):
    """A column for values as the one at the cursor; None where only Python can make it."""
    cdef _Column column = _Column.__new__(_Column)
    column.kind, column.code = kind, 0
    if kind == DICT:
        column.nested = {}
    elif kind == SCALAR and cursor.at != cursor.end:
        column.code = <uint8_t>cursor.at[0]
        dtype = TYPES.get(column.code, BOOL)
        if dtype is BOOL:  # Gymnasium makes objects of numpy's bools
            return None
    elif kind == TRUE or kind == INT or kind == FLOAT:
        dtype = DTYPE_OF_KIND[kind]
    else:
        return None
    if kind != DICT:
        column.values, column.itemsize = ZEROS(n, dtype), dtype.itemsize
        column.data = (<shm_ndarray *><PyObject *>column.values).data
    column.mask = ZEROS(n, BOOL)
    column.present = (<shm_ndarray *><PyObject *>column.mask).data
    return column


cdef bint add_to_columns(dict columns, Cursor *cursor, Py_ssize_t row, Py_ssize_t n, int depth, str apart, dict parts) except -1:
    """Put the entries of a dict's record into their columns. False: Python has to make them."""
    cdef Cursor inner
    cdef _Column column
    cdef uint8_t kind, value_kind
    cdef uint32_t key_size
    cdef uint64_t size
    cdef const char *key
    if cursor.at == cursor.end or take(cursor, 1)[0] != b"D" or depth > DEEPEST:
        return False
    while cursor.at != cursor.end:
        key = take_entry(cursor, &kind, &key_size)
        if key_size == 0 or key[0] == b"_":  # it may be another key's mask
            return False
        name = PyUnicode_DecodeUTF8(key, key_size, NULL)
        if apart is not None and name == apart:
            parts[row] = take_value(cursor, kind, depth)
            continue
        value_kind = <uint8_t>TRUE if kind == FALSE else kind
        column = columns.get(name)
        if column is None:
            column = columns[name] = new_column(value_kind, cursor, n)
            if column is None:
                return False
        if column.kind != value_kind or column.present[row]:
            return False
        column.present[row] = 1
        if kind == DICT:
            size = take_size(cursor)
            inner.at = take(cursor, size)
            inner.end = cursor.at
            if not add_to_columns(column.nested, &inner, row, n, depth + 1, None, None):
                return False
        elif value_kind == TRUE:
            column.data[row] = kind == TRUE
        else:
            if kind == SCALAR and <uint8_t>take(cursor, 1)[0] != column.code:
                return False
            memcpy(column.data + row * column.itemsize, take(cursor, column.itemsize), column.itemsize)
    return True


cdef dict finished(dict columns):
    cdef _Column column
    infos = {}
    for name, column in columns.items():
        infos[name] = column.values if column.nested is None else finished(column.nested)
        infos["_" + name] = column.mask
    return infos


def info_columns(records, places, Py_ssize_t n, str apart=None, dict parts=None):
    """Infos as Gymnasium's vector envs have them, where they hold nothing but numbers and dicts; None otherwise."""
    cdef Cursor cursor
    cdef Py_ssize_t k, row
    cdef bytes record
    cdef dict columns = {}
    for k in range(len(records)):
        record, row = records[k], places[k]
        if not record:
            continue
        if not 0 <= row < n:
            raise IndexError(row)
        cursor.at = PyBytes_AS_STRING(record)
        cursor.end = cursor.at + PyBytes_GET_SIZE(record)
        if not add_to_columns(columns, &cursor, row, n, 0, apart, parts):
            return None
    return finished(columns)
