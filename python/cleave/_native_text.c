/* Text for people: units and aligned columns, as the inspect page has them. */
#include "_native.h"

#include "base/human.h"

static PyObject *text_amount(PyObject *number, void (*print)(strbuf *, int64_t))
{
	strbuf b = STRBUF_INIT;
	int overflow;
	long long n = PyLong_AsLongLongAndOverflow(number, &overflow);
	if (PyErr_Occurred())
		return NULL;
	if (overflow)
		n = overflow < 0 ? INT64_MIN : INT64_MAX;
	print(&b, n);
	return take_text(CLV_OK, &b);
}

/* text_bytes(n) -> '46.8 MB' */
PyObject *text_bytes_py(PyObject *self, PyObject *number)
{
	return text_amount(number, strbuf_bytes);
}

/* text_count(n) -> '11.7M' */
PyObject *text_count_py(PyObject *self, PyObject *number)
{
	return text_amount(number, strbuf_count);
}

/* The cells of one row, borrowed from its strings; false with an exception. */
static bool read_row(PyObject *row, Py_ssize_t columns, const char **cells)
{
	if (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) != columns) {
		PyErr_Format(PyExc_ValueError, "a row is a tuple of %zd texts", columns);
		return false;
	}
	for (Py_ssize_t i = 0; i < columns; i++)
		if (!(cells[i] = PyUnicode_AsUTF8(PyTuple_GET_ITEM(row, i))))
			return false;
	return true;
}

/* Everything is a tuple here: nobody can change it while its strings are borrowed. */
static PyObject *columns_of(PyObject *rows, PyObject *right)
{
	Py_ssize_t n = PyTuple_GET_SIZE(rows), columns = PyTuple_GET_SIZE(right);
	const char **cells = PyMem_Calloc((size_t)(n * columns + 1), sizeof *cells);
	bool *flush = PyMem_Calloc((size_t)columns + 1, sizeof *flush);
	strbuf b = STRBUF_INIT;
	bool ok = cells && flush;
	if (!ok)
		PyErr_NoMemory();
	for (Py_ssize_t i = 0; ok && i < columns; i++)
		flush[i] = PyTuple_GET_ITEM(right, i) == Py_True;
	for (Py_ssize_t i = 0; ok && i < n; i++)
		ok = read_row(PyTuple_GET_ITEM(rows, i), columns, cells + i * columns);
	if (ok)
		strbuf_columns(&b, cells, (uint32_t)n, (uint32_t)columns, flush);
	PyMem_Free(cells);
	PyMem_Free(flush);
	return ok ? take_text(CLV_OK, &b) : NULL;
}

/* text_columns(rows, right) -> aligned lines */
PyObject *text_columns_py(PyObject *self, PyObject *args)
{
	PyObject *rows, *right;
	if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &rows, &PyTuple_Type, &right))
		return NULL;
	return columns_of(rows, right);
}
