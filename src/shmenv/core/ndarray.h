/* The first fields of a numpy array object. Their order is part of numpy's binary interface (the same in 1.x and 2.x),
 * so the worker's loop can look at an observation without building against numpy; _loop checks it once at import. */
#ifndef SHM_NDARRAY_H
#define SHM_NDARRAY_H
#include <Python.h>

typedef struct {
    PyObject_HEAD
    char *data;
    int nd;
    Py_ssize_t *dimensions;
    Py_ssize_t *strides;
    PyObject *base;
    PyObject *descr;
    int flags;
} shm_ndarray;

#define SHM_C_CONTIGUOUS 1 /* NPY_ARRAY_C_CONTIGUOUS */
#endif
