/* Counts the bytecode instructions of each function, for benchmarks/road.py: `enable()` in each thread, `counts()` at the end.
 * In C, because a trace function in Python makes a node so slow that more messages share a commit than otherwise. */
#include <Python.h>

struct counter {
    struct counter *next;
    PyCodeObject *code; /* kept, so that its address is not another's later */
    long count;
};

static struct counter *counters; /* of all threads: they hold the interpreter's lock */
static Py_ssize_t extra_index;

static struct counter *counter_of(PyCodeObject *code)
{
    struct counter *found = NULL;
    _PyCode_GetExtra((PyObject *)code, extra_index, (void **)&found);
    if (found == NULL) {
        found = PyMem_Calloc(1, sizeof *found);
        if (found == NULL || _PyCode_SetExtra((PyObject *)code, extra_index, found) < 0)
            abort();
        Py_INCREF(code);
        found->code = code;
        found->next = counters;
        counters = found;
    }
    return found;
}

static int trace(PyObject *self, PyFrameObject *frame, int what, PyObject *argument)
{
    if (what == PyTrace_CALL)
        return PyObject_SetAttrString((PyObject *)frame, "f_trace_opcodes", Py_True) < 0
            || PyObject_SetAttrString((PyObject *)frame, "f_trace_lines", Py_False) < 0 ? -1 : 0;
    if (what == PyTrace_OPCODE) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        counter_of(code)->count++;
        Py_DECREF(code);
    }
    return 0;
}

static PyObject *enable(PyObject *module, PyObject *nothing)
{
    PyEval_SetTrace(trace, NULL);
    Py_RETURN_NONE;
}

static PyObject *counts(PyObject *module, PyObject *nothing)
{
    PyObject *found = PyList_New(0);
    for (struct counter *each = counters; found != NULL && each != NULL; each = each->next) {
        PyObject *pair = Py_BuildValue("(Ol)", each->code, each->count);
        if (pair == NULL || PyList_Append(found, pair) < 0)
            Py_CLEAR(found);
        Py_XDECREF(pair);
    }
    return found;
}

static PyMethodDef functions[] = {
    {"enable", enable, METH_NOARGS, "Count in this thread from now on."},
    {"counts", counts, METH_NOARGS, "Each code object with its count, of all threads."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "opcodes", NULL, -1, functions};

PyMODINIT_FUNC PyInit_opcodes(void)
{
    extra_index = _PyEval_RequestCodeExtraIndex(NULL);
    return PyModule_Create(&definition);
}
