/* Parts of a traced file for TorchScript: files of their own, and which values go in and out of them. */
#include "_native_file.h"

#include "file/artifact.h"
#include "plan/view.h"

static const artifact_plan *plan_of(PyObject *file, unsigned number)
{
	const artifact *a = artifact_of(file);
	if (number < a->plans.n)
		return &a->plans.at[number];
	PyErr_Format(PyExc_IndexError, "there is no plan %u", number);
	return NULL;
}

static clv_status save_and_free(artifact *a, const char *path)
{
	clv_status st = artifact_save(a, path);
	artifact_free(a);
	return st;
}

/* segment_save(artifact, plan, segment, path): the segment with its code */
PyObject *segment_save_py(PyObject *self, PyObject *args)
{
	PyObject *file;
	unsigned number, segment;
	const char *path;
	artifact *made;
	if (!PyArg_ParseTuple(args, "O!IIy", &ArtifactType, &file, &number, &segment, &path))
		return NULL;
	clv_status st = artifact_take_segment(artifact_of(file), number, segment, &made);
	return none_or_raise(st == CLV_OK ? save_and_free(made, path) : st);
}

/* nodes_save(artifact, plan, first, end, path): some nodes */
PyObject *nodes_save_py(PyObject *self, PyObject *args)
{
	PyObject *file;
	unsigned number, first, end;
	const char *path;
	artifact *made;
	if (!PyArg_ParseTuple(args, "O!IIIy", &ArtifactType, &file, &number, &first, &end, &path))
		return NULL;
	clv_status st = artifact_take_nodes(artifact_of(file), number, first, end, &made);
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
	PyObject *file;
	unsigned number, first, end;
	view v;
	if (!PyArg_ParseTuple(args, "O!III", &ArtifactType, &file, &number, &first, &end))
		return NULL;
	const artifact_plan *e = plan_of(file, number);
	if (!e)
		return NULL;
	if (first > end || end > e->p->nodes.n)
		return PyErr_Format(PyExc_IndexError, "nodes %u to %u are not in the plan", first, end);
	clv_status st = segment_view(e->p, first, end, &v);
	if (st != CLV_OK)
		return raise_status(st);
	PyObject *out = Py_BuildValue("(NN)", id_list_new(v.inputs.at, v.inputs.n), id_list_new(v.outputs.at, v.outputs.n));
	view_free(&v);
	return out;
}

/* plan_values(artifact, plan) -> (inputs, leaves of the output), as numbers of values */
PyObject *plan_values_py(PyObject *self, PyObject *args)
{
	PyObject *file;
	unsigned number;
	VEC(value_id) leaves = {0};
	clv_status st = CLV_OK;
	if (!PyArg_ParseTuple(args, "O!I", &ArtifactType, &file, &number))
		return NULL;
	const artifact_plan *e = plan_of(file, number);
	if (!e)
		return NULL;
	for (uint32_t i = 0; i < e->p->out_tree.n && st == CLV_OK; i++)
		if (e->p->out_tree.at[i].kind == TREE_VALUE)
			st = vec_push(&leaves, e->p->out_tree.at[i].u.v);
	PyObject *out = st != CLV_OK ? raise_status(st)
	                             : Py_BuildValue("(NN)", id_list_new(e->p->inputs.at, e->p->inputs.n),
	                                             id_list_new(leaves.at, leaves.n));
	vec_free(&leaves);
	return out;
}

/* segment_trust(code): machine code in these bytes may run here */
PyObject *segment_trust_py(PyObject *self, PyObject *code)
{
	return need_tensor(code) ? none_or_raise(br_segment_trust(py_borrow(code))) : NULL;
}
