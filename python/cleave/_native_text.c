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

/* text_columns(rows, right) -> aligned lines. Everything is a tuple: nobody can change it while its texts are borrowed. */
PyObject *text_columns_py(PyObject *self, PyObject *args)
{
	call c = {0};
	PyObject *rows, *right;
	if (!take(NULL, args, "((", &rows, &right))
		return NULL;
	uint32_t n = (uint32_t)PyTuple_GET_SIZE(rows), columns = (uint32_t)PyTuple_GET_SIZE(right);
	const char **cells = call_room(&c, (size_t)n * columns, sizeof *cells);
	bool *flush = cells ? call_room(&c, columns, sizeof *flush) : NULL;
	strbuf b = STRBUF_INIT;
	for (uint32_t i = 0; flush && i < columns; i++)
		flush[i] = PyTuple_GET_ITEM(right, i) == Py_True;
	for (uint32_t i = 0; flush && i < n; i++) {
		PyObject *row = PyTuple_GET_ITEM(rows, i);
		if (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) != columns)
			return call_end(&c, PyErr_Format(PyExc_ValueError, "a row is a tuple of %u texts", columns));
		for (uint32_t k = 0; k < columns; k++)
			if (!(cells[i * columns + k] = PyUnicode_AsUTF8(PyTuple_GET_ITEM(row, k))))
				return call_end(&c, NULL);
	}
	if (flush)
		strbuf_columns(&b, cells, n, columns, flush);
	return call_end(&c, flush ? take_text(CLV_OK, &b) : NULL);
}
