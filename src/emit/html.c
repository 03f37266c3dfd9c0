/* Writes the report: checks the options and puts the plan's data into the page. */
#include "emit/html.h"

#include <math.h>
#include <string.h>

#include "base/options.h"
#include "pipe/partition_object.h"

static clv_status check_speed(double *v, double otherwise, const char *name)
{
	if (!isfinite(*v) || *v < 0)
		return fail(CLV_E_INVALID, "clv_html_options.%s is not a speed", name);
	*v = *v > 0 ? *v : otherwise;
	return CLV_OK;
}

/* Every node lies in one of n groups. */
static clv_status check_groups(const plan *p, const uint32_t *of_node, uint32_t n, const char *name)
{
	if (n && !of_node)
		return fail(CLV_E_INVALID, "%u %ss, but %s_of_node is NULL", n, name, name);
	for (node_id k = 0; n && k < p->nodes.n; k++)
		if (of_node[k] >= n)
			return fail(CLV_E_INVALID, "node %u is in %s %u of %u", k, name, of_node[k], n);
	return CLV_OK;
}

static bool is_cost(double x)
{
	return isfinite(x) && x >= 0;
}

static clv_status check_stages(const html_spec *o)
{
	for (uint32_t i = 0; o->stages && i < o->nstages; i++) {
		const stage_score *s = &o->stages[i];
		if (!is_cost(s->fwd_us) || !is_cost(s->bwd_us) || !is_cost(s->comm_us))
			return fail(CLV_E_INVALID, "a time of stage %u is not a time", i);
		if (o->ndevices && s->device >= o->ndevices)
			return fail(CLV_E_INVALID, "stage %u is on device %u of %u", i, s->device, o->ndevices);
	}
	for (uint32_t i = 0; i < o->ndevices; i++)
		if (!o->device_names || !o->device_names[i])
			return fail(CLV_E_INVALID, "device %u of %u has no name", i, o->ndevices);
	return is_cost(o->lower_bound_us) ? CLV_OK : fail(CLV_E_INVALID, "lower_bound_us is not a time");
}

static clv_status check_html_spec(const clv_frontiers *f, html_spec *o)
{
	if (o->frontier != NONE && o->frontier >= f->n)
		return fail(CLV_E_INVALID, "clv_html_options: frontier %u is chosen, and there are %u", o->frontier, f->n);
	TRY(check_speed(&o->bandwidth_bytes_per_s, 125e6, "bandwidth_bytes_per_s"));
	TRY(check_speed(&o->prefix_flops_per_s, 1e12, "prefix_flops_per_s"));
	TRY(check_speed(&o->suffix_flops_per_s, 1e12, "suffix_flops_per_s"));
	TRY(check_groups(f->p, o->stage_of_node, o->nstages, "stage"));
	TRY(check_groups(f->p, o->segment_of_node, o->nsegments, "segment"));
	o->title = o->title ? o->title : plan_s(f->p, f->p->model);
	return check_stages(o);
}

clv_status html_spec_read(const plan *p, const clv_html_options *options, html_spec *out)
{
	clv_html_options o = CLV_HTML_OPTIONS_INIT;
	TRY(options_read(&o, sizeof o, options, "clv_html_options"));
	*out = (html_spec){.title = o.title,
	                   .sizes = o.sizes,
	                   .bandwidth_bytes_per_s = o.bandwidth_bytes_per_s,
	                   .prefix_flops_per_s = o.prefix_flops_per_s,
	                   .suffix_flops_per_s = o.suffix_flops_per_s,
	                   .frontier = o.frontier};
	if (!o.partition)
		return CLV_OK;
	if (!o.partition->staged || o.partition->staged->nodes.n != p->nodes.n)
		return fail(CLV_E_INVALID, "clv_html_options.partition is not one of this plan");
	out->nstages = o.partition->p.nstages;
	out->stage_of_node = o.partition->node_stage;
	out->stages = o.partition->score.stages;
	out->lower_bound_us = o.partition->score.lower_bound_us;
	return CLV_OK;
}

/* Text between tags. Anybody may have chosen it: nothing in it is a tag, and it is valid UTF-8. */
static void put_html_text(const char *s, strbuf *b)
{
	bool utf8 = utf8_valid(s, strlen(s));
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;
		if (strchr("<>&\"'", c))
			strbuf_printf(b, "&#%u;", c);
		else
			strbuf_putc(b, c < 0x20 || c == 0x7F || (c > 0x7F && !utf8) ? '?' : *s);
	}
}

static void put_part(const unsigned char *part, size_t n, strbuf *b)
{
	strbuf_add(b, (const char *)part, n);
}

static clv_status write_report(const clv_frontiers *f, html_spec *o, strbuf *b)
{
	TRY(check_html_spec(f, o));
	put_part(report_head, report_head_size, b);
	put_html_text(o->title, b);
	put_part(report_middle, report_middle_size, b);
	TRY(html_data(f, o, b));
	put_part(report_tail, report_tail_size, b);
	return CLV_OK;
}

clv_status plan_html(const plan *p, const html_spec *spec, char **out)
{
	html_spec o = *spec;
	clv_frontiers *f;
	strbuf b = STRBUF_INIT;
	TRY(clv_frontiers_create(p, &o.sizes, &f));
	clv_status st = write_report(f, &o, &b);
	clv_frontiers_free(f);
	if (st == CLV_OK)
		return strbuf_take(&b, out);
	strbuf_free(&b);
	return st;
}

clv_status clv_plan_html(const clv_plan *p, const clv_html_options *options, char **out)
{
	html_spec spec;
	if (!p || !out)
		return fail(CLV_E_INVALID, "clv_plan_html needs a plan and a place for the page");
	TRY(html_spec_read(p, options, &spec));
	return plan_html(p, &spec, out);
}
