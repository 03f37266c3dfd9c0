/* The report: a plan as one HTML file. html.c makes the page, html_data.c writes the plan as JSON; the page itself is in
 * report/ and is turned into report_head, report_middle and report_tail by cmake/report.cmake.
 *
 * JSON holds facts of the plan and numbers that C has counted. What is only for the eye (which boxes there are, where
 * they stand, what a curve looks like) is made by the page. */
#pragma once

#include "pipe/pipe.h"
#include "split/frontier.h"

/* What a page shows: what callers ask for, and what is known of stages and segments. All is borrowed. */
typedef struct html_spec {
	const char *title; /* NULL: the class of the model */
	clv_sizes sizes;
	double bandwidth_bytes_per_s, prefix_flops_per_s, suffix_flops_per_s; /* 0: as in clv_html_options */
	uint32_t frontier;                                                    /* NONE: none was chosen */

	uint32_t nstages;              /* 0: the plan is not partitioned */
	const uint32_t *stage_of_node; /* per node, below nstages */
	const stage_score *stages;     /* per stage: its device, times and bytes; NULL: not known */
	uint32_t ndevices;             /* 0: devices are shown by number */
	const char *const *device_names;
	double lower_bound_us; /* 0: not known */

	uint32_t nsegments;                /* 0: nothing was compiled */
	const uint32_t *segment_of_node;   /* per node, below nsegments */
	const bool *segment_compiled;      /* per segment; NULL: all are */
	const char *const *segment_reason; /* per segment: why it is not compiled, or NULL; NULL: no reasons */
} html_spec;

/* As clv_plan_html(). */
clv_status plan_html(const plan *p, const html_spec *spec, char **out);

/* What a caller of cleave.h asks for; fails for a partition of another plan. */
clv_status html_spec_read(const plan *p, const clv_html_options *options, html_spec *out);

/* head, title, middle, data, tail. Generated; they end without a NUL. */
extern const unsigned char report_head[], report_middle[], report_tail[];
extern const size_t report_head_size, report_middle_size, report_tail_size;

/* Columns are arrays, one element per node, value or frontier: 100,000 nodes are then parsed in a moment.
   docs/report.md says what each holds. `o` is checked. */
clv_status html_data(const clv_frontiers *f, const html_spec *o, strbuf *b);
