/* Finds the place of a cut in another plan of the same model.
 * The place of a cut: which side the modules are on, and the same place in another plan of the same model. In train and
 * in eval mode, or at other sizes, other operators may run before, after, and where the cut is. */
#include <string.h>

#include "plan/diff.h"
#include "split/frontier.h"

clv_status scope_sides(const plan *p, node_id end, uint8_t **out)
{
	uint8_t *bits = mem_alloc((size_t)p->scopes.n + 1);
	TRY_MEM(bits);
	for (node_id n = 0; n < p->nodes.n; n++)
		if (p->nodes.at[n].scope != NONE)
			bits[p->nodes.at[n].scope] |= (uint8_t)(1u << (n < end ? PREFIX : SUFFIX));
	*out = bits;
	return CLV_OK;
}

/* Whether what runs inside a module, or inside the nearest one around it in which anything runs, is all in the prefix. */
static bool is_before(const plan *p, const uint8_t *bits, const char *path)
{
	size_t n = strlen(path);
	unsigned found = 0;
	while (n && !found) {
		for (scope_id s = 0; s < p->scopes.n; s++) {
			const char *other = plan_s(p, p->scopes.at[s].path);
			if (!strncmp(other, path, n) && (other[n] == '\0' || other[n] == '.'))
				found |= bits[s];
		}
		while (n && path[--n] != '.')
			;
	}
	return found == 1u << PREFIX;
}

/* Nodes that run nowhere in `from` come after the cut, unless they belong to a module that ends before it. */
static node_id last_before(const plan *from, const uint8_t *bits, const plan *to, node_id first, node_id end)
{
	node_id last = first;
	for (node_id n = first + 1; n < end; n++)
		if (is_before(from, bits, module_path(to, n)))
			last = n;
	return last;
}

clv_status place_match(const plan *from, node_id at, const plan *to, node_id *out)
{
	node_pairs m;
	uint8_t *bits = NULL;
	node_id last = NONE, end = to->nodes.n;
	*out = NONE;
	if (at >= from->nodes.n)
		return CLV_OK;
	TRY(node_pairs_new(from, to, PAIRS_SURE, &m));
	for (node_id n = 0; n < from->nodes.n; n++) { /* pairs rise but for those that were moved */
		if (m.to_b[n] == NONE || m.moved[n])
			continue;
		if (n <= at)
			last = m.to_b[n];
		else if (m.to_b[n] < end)
			end = m.to_b[n];
	}
	node_pairs_free(&m);
	if (last == NONE) { /* then the place is before what runs after it, if something else does before that */
		*out = end > 0 && end < to->nodes.n ? end - 1 : NONE;
		return CLV_OK;
	}
	TRY(scope_sides(from, at + 1, &bits));
	*out = last_before(from, bits, to, last, end);
	mem_free(bits);
	return CLV_OK;
}

clv_status sides_match(const plan *from, node_id at, const plan *to, bool *const must[SIDES])
{
	node_pairs m;
	TRY(node_pairs_new(from, to, PAIRS_SURE, &m));
	for (node_id n = 0; n < from->nodes.n; n++)
		if (m.to_b[n] != NONE)
			must[n <= at ? PREFIX : SUFFIX][m.to_b[n]] = true;
	node_pairs_free(&m);
	return CLV_OK;
}
