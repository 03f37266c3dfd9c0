/* Parts of a traced file for TorchScript: files of their own, and which values go in and out of them. */
#include "_native_file.h"

#include "file/artifact.h"
#include "plan/view.h"

static clv_status save_and_free(artifact *a, const char *path)
{
	clv_status st = artifact_save(a, path);
	artifact_free(a);
	return st;
}

/* segment_save(artifact, plan, segment, path): the segment with its code */
PyObject *segment_save_py(PyObject *self, PyObject *args)
{
	artifact *a, *made;
	uint32_t number, segment;
	const char *path;
	if (!take(NULL, args, "@IIy", &ArtifactType, &a, &number, &segment, &path))
		return NULL;
	clv_status st = artifact_take_segment(a, number, segment, &made);
	return none_or_raise(st == CLV_OK ? save_and_free(made, path) : st);
}

/* nodes_save(artifact, plan, first, end, path): some nodes */
PyObject *nodes_save_py(PyObject *self, PyObject *args)
{
	artifact *a, *made;
	uint32_t number, first, end;
	const char *path;
	if (!take(NULL, args, "@IIIy", &ArtifactType, &a, &number, &first, &end, &path))
		return NULL;
	clv_status st = artifact_take_nodes(a, number, first, end, &made);
	return none_or_raise(st == CLV_OK ? save_and_free(made, path) : st);
}

static clv_status segment_view(const plan *p, node_id first, node_id end, view *out)
{
	liveness l;
	TRY(liveness_new(p, &l));
	clv_status st = view_segment(p, &l, first, end, out);
	liveness_free(&l);
	return st;
}

/* nodes_values(artifact, plan, first, end) -> (inputs, outputs), as numbers of values */
PyObject *nodes_values_py(PyObject *self, PyObject *args)
{
	artifact *a;
	PyObject *number;
	uint32_t i, first, end;
	view v;
	if (!take(NULL, args, "@OII", &ArtifactType, &a, &number, &first, &end) ||
	    !index_of(number, a->plans.n, "plan", &i))
		return NULL;
	const plan *p = a->plans.at[i].p;
	if (first > end || end > p->nodes.n)
		return PyErr_Format(PyExc_IndexError, "nodes %u to %u are not in the plan", first, end);
	if (!ok_or_raise(segment_view(p, first, end, &v)))
		return NULL;
	PyObject *out = Py_BuildValue("(NN)", id_list(v.inputs.at, v.inputs.n), id_list(v.outputs.at, v.outputs.n));
	view_free(&v);
	return out;
}

/* plan_values(artifact, plan) -> (inputs, leaves of the output), as numbers of values */
PyObject *plan_values_py(PyObject *self, PyObject *args)
{
	artifact *a;
	PyObject *number;
	uint32_t i;
	if (!take(NULL, args, "@O", &ArtifactType, &a, &number) || !index_of(number, a->plans.n, "plan", &i))
		return NULL;
	const plan *p = a->plans.at[i].p;
	PyObject *leaves = PyList_New(0);
	for (uint32_t k = 0; leaves && k < p->out_tree.n; k++)
		if (p->out_tree.at[k].kind == TREE_VALUE)
			list_push(&leaves, PyLong_FromUnsignedLong(p->out_tree.at[k].u.v));
	return Py_BuildValue("(NN)", id_list(p->inputs.at, p->inputs.n), leaves);
}

/* segment_trust(code): machine code in these bytes may run here */
PyObject *segment_trust_py(PyObject *self, PyObject *code)
{
	return need_tensor(code) ? none_or_raise(br_segment_trust(py_borrow(code))) : NULL;
}
