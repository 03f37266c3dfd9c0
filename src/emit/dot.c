/* Writes pictures of plans in the DOT language. Folding is in dot_fold.c, labels are in dot_label.c.
 *
 * Names of nodes and clusters in the DOT text are made from numbers (in0, n17, cluster_3), never from the model. */
#include "emit/dot.h"

#include <string.h>

#include "base/options.h"

#define LARGE 1000 /* vertices beyond which Graphviz is told to hurry */

const colours prefix_colours = {"#E4EEFA", "#7C9CC4"};
const colours suffix_colours = {"#E5F3E8", "#7FB08C"};
const colours boundary_colours = {"#FFE3A6", "#B86E00"};
const colours passthrough_colours = {"#EFE6FA", "#7B53B5"};
static const colours end_colours = {"#E2E8F0", "#475569"};    /* input, output */
static const colours params_colours = {"#E8F1FB", "#8FB0D8"}; /* has parameters */
static const colours plain_colours = {"#FFFFFF", "#A3B1C2"};
static const colours join_colours = {"#FFF4DE", "#D9A441"}; /* an operation where branches meet */

static void put_vertex(const drawing *d, uint32_t v, strbuf *b)
{
	if (v < d->p->inputs.n)
		strbuf_printf(b, "in%u", v);
	else if (v == output_vertex(d))
		strbuf_puts(b, "out");
	else
		strbuf_printf(b, "n%u", d->units.at[v - d->p->inputs.n].first);
}

static void put_indent(strbuf *b, unsigned depth)
{
	for (unsigned i = 0; i < depth; i++)
		strbuf_puts(b, "  ");
}

static void start_vertex(const drawing *d, uint32_t v, unsigned depth, strbuf *b)
{
	put_indent(b, depth);
	put_vertex(d, v, b);
	strbuf_puts(b, " [label=<");
}

static void end_vertex(const char *class, const colours *c, const char *more, strbuf *b)
{
	strbuf_printf(b, ", class=\"%s\", fillcolor=\"%s\", color=\"%s\"%s];\n", class, c->fill, c->line, more);
}

static void write_input(const drawing *d, uint32_t i, strbuf *b)
{
	bool passes = crosses_cut(d, d->p->inputs.at[i]);
	start_vertex(d, i, 1, b);
	label_input(d, i, b);
	strbuf_putc(b, '>');
	end_vertex(passes ? "input passthrough" : "input", passes ? &passthrough_colours : &end_colours,
	           passes ? ", penwidth=2, style=\"rounded,filled,dashed\"" : "", b);
}

static void write_output(const drawing *d, strbuf *b)
{
	start_vertex(d, output_vertex(d), 1, b);
	label_output(d, b);
	strbuf_putc(b, '>');
	end_vertex("output", &end_colours, "", b);
}

static void has_param(void *ctx, value_id v)
{
	const plan *p = ((void **)ctx)[0];
	bool *found = ((void **)ctx)[1];
	*found = *found || p->values.at[v].kind == VALUE_PARAM;
}

static const colours *colours_of_trace(const drawing *d, const unit *u, uint32_t edges_in)
{
	bool params = false;
	void *ctx[] = {(void *)d->p, &params};
	for (node_id k = u->first; k < u->end && !params; k++)
		node_each_arg(d->p, k, has_param, ctx);
	return params ? &params_colours : u->module == NONE && edges_in > 1 ? &join_colours : &plain_colours;
}

static void write_unit(drawing *d, uint32_t i, const uint32_t *edges_in, unsigned depth, strbuf *b)
{
	const unit *u = &d->units.at[i];
	start_vertex(d, vertex_of_unit(d, i), depth, b);
	label_unit(d, i, b);
	strbuf_puts(b, ">, tooltip=\"");
	tooltip_unit(d, u, b);
	strbuf_putc(b, '"');
	if (!is_cut(d))
		end_vertex(u->module == NONE ? "operation" : "module", colours_of_trace(d, u, edges_in[i]), "", b);
	else if (unit_is_boundary(d, u))
		end_vertex("prefix boundary", &boundary_colours, ", penwidth=2.5", b);
	else if (unit_side(d, u) == PREFIX)
		end_vertex("prefix", &prefix_colours, "", b);
	else
		end_vertex("suffix", &suffix_colours, "", b);
}

static const char *cluster_line(const drawing *d, const cluster *c)
{
	if (!is_cut(d))
		return "#C3CEDB";
	if (c->side[PREFIX] && c->side[SUFFIX])
		return boundary_colours.line;
	return c->side[PREFIX] ? prefix_colours.line : suffix_colours.line;
}

static void start_cluster(const drawing *d, scope_id s, unsigned depth, strbuf *b)
{
	put_indent(b, depth);
	strbuf_printf(b, "subgraph cluster_%u {\n", s);
	put_indent(b, depth + 1);
	strbuf_puts(b, "label=<");
	label_cluster(d, s, b);
	strbuf_puts(b, ">; tooltip=\"");
	label_text(b, plan_s(d->p, d->p->scopes.at[s].path));
	strbuf_printf(b, "\"; color=\"%s\";\n", cluster_line(d, &d->clusters[s]));
}

/* Paths of modules nest at most 100 deep. */
static void write_cluster(drawing *d, const cluster *c, const uint32_t *edges_in, unsigned depth, strbuf *b)
{
	for (uint32_t u = c->first_unit; u != NONE; u = d->units.at[u].next)
		write_unit(d, u, edges_in, depth, b);
	for (scope_id s = c->first_child; s != NONE; s = d->clusters[s].next) {
		start_cluster(d, s, depth, b);
		write_cluster(d, &d->clusters[s], edges_in, depth + 1, b);
		put_indent(b, depth);
		strbuf_puts(b, "}\n");
	}
}

static clv_status write_units(drawing *d, strbuf *b)
{
	uint32_t *edges_in = arena_array(&d->arena, (size_t)d->units.n + 1, sizeof *edges_in);
	TRY(arena_status(&d->arena));
	for (uint32_t e = 0; e < d->edges.n; e++)
		edges_in[d->edges.at[e].to - d->p->inputs.n]++; /* the output is one behind the last unit */
	write_cluster(d, &d->clusters[d->p->scopes.n], edges_in, 1, b);
	return CLV_OK;
}

static enum side vertex_side(const drawing *d, uint32_t v)
{
	if (v < d->p->inputs.n)
		return PREFIX;
	return v == output_vertex(d) ? SUFFIX : unit_side(d, &d->units.at[v - d->p->inputs.n]);
}

static void write_edge(const drawing *d, const edge *e, strbuf *b)
{
	put_indent(b, 1);
	put_vertex(d, e->from, b);
	strbuf_puts(b, " -> ");
	put_vertex(d, e->to, b);
	if (is_cut(d) && vertex_side(d, e->from) != vertex_side(d, e->to)) {
		bool input = e->from < d->p->inputs.n;
		strbuf_printf(b, " [class=\"%s\", color=\"%s\", penwidth=2.5%s]", input ? "passthrough" : "boundary",
		              input ? passthrough_colours.line : boundary_colours.line, input ? ", style=dashed" : "");
	}
	strbuf_puts(b, ";\n");
}

#define FONT "fontname=\"Helvetica,Arial,sans-serif\""

static clv_status write_head(const drawing *d, strbuf *b)
{
	strbuf_puts(b, "digraph cleave {\n  graph [label=<");
	TRY(label_title(d, b));
	strbuf_printf(b,
	              ">, rankdir=%s, labelloc=t, labeljust=l, " FONT ", fontsize=12, fontcolor=\"#1E293B\",\n"
	              "         bgcolor=white, pad=0.3, nodesep=0.3, ranksep=0.35, newrank=true, style=\"rounded,filled\","
	              " fillcolor=\"#64748B0D\"%s];\n",
	              d->o.direction, d->units.n > LARGE ? ", splines=line, nslimit=1, nslimit1=1, mclimit=0.1" : "");
	strbuf_puts(b, "  node [shape=box, style=\"rounded,filled\", " FONT ", fontsize=12, fontcolor=\"#1E293B\","
	               " margin=\"0.14,0.07\", height=0.4];\n");
	strbuf_puts(b, "  edge [color=\"#64748B\", arrowsize=0.7];\n");
	return CLV_OK;
}

static clv_status write_picture(drawing *d, strbuf *b)
{
	TRY(drawing_make(d));
	TRY(write_head(d, b));
	for (uint32_t i = 0; i < d->p->inputs.n; i++)
		write_input(d, i, b);
	TRY(write_units(d, b));
	write_output(d, b);
	for (uint32_t i = 0; i < d->edges.n; i++)
		write_edge(d, &d->edges.at[i], b);
	strbuf_puts(b, "}\n");
	return CLV_OK;
}

static bool is_listed(const char *s, const char *const *words, size_t n)
{
	for (size_t i = 0; s && i < n; i++)
		if (strcmp(s, words[i]) == 0)
			return true;
	return false;
}

static clv_status check_dot_options(const plan *p, const clv_dot_options *o)
{
	static const char *const details[] = {"module", "operation"}, *const directions[] = {"TB", "BT", "LR", "RL"};
	uint32_t frontiers = p->nodes.n ? p->nodes.n - 1 : 0;
	if (!is_listed(o->detail, details, 2))
		return fail(CLV_E_INVALID, "the detail of a picture is \"module\" or \"operation\", not \"%s\"",
		            o->detail ? o->detail : "");
	if (!is_listed(o->direction, directions, 4))
		return fail(CLV_E_INVALID, "the direction of a picture is TB, BT, LR or RL, not \"%s\"",
		            o->direction ? o->direction : "");
	if (o->frontier != CLV_NONE && o->frontier >= frontiers)
		return fail(CLV_E_INVALID, "no frontier %u, the plan has %u", o->frontier, frontiers);
	return CLV_OK;
}

clv_status clv_plan_dot(const clv_plan *p, const clv_dot_options *options, char **out)
{
	drawing d = {.p = p, .o = CLV_DOT_OPTIONS_INIT};
	if (!p || !out)
		return fail(CLV_E_INVALID, "clv_plan_dot needs a plan and a place for the text");
	TRY(options_read(&d.o, sizeof d.o, options, "clv_dot_options"));
	TRY(check_dot_options(p, &d.o));
	d.operations = strcmp(d.o.detail, "operation") == 0;
	TRY(clv_frontiers_create(p, &d.o.sizes, &d.f));
	strbuf b = STRBUF_INIT;
	clv_status st = write_picture(&d, &b);
	if (st == CLV_OK)
		st = strbuf_take(&b, out);
	strbuf_free(&b);
	drawing_free(&d);
	clv_frontiers_free(d.f);
	return st;
}
