/* The report: a plan as one HTML file. html.c makes the page, html_data.c writes the plan as JSON; the page itself is in
 * report/ and is turned into report_head, report_middle and report_tail by cmake/report.cmake.
 *
 * JSON holds facts of the plan and numbers that C has counted. What is only for the eye (which boxes there are, where
 * they stand, what a curve looks like) is made by the page. */
#ifndef EMIT_HTML_H
#define EMIT_HTML_H

#include "split/frontier.h"

/* head, title, middle, data, tail. Generated; they end without a NUL. */
extern const unsigned char report_head[], report_middle[], report_tail[];
extern const size_t report_head_size, report_middle_size, report_tail_size;

/* Columns are arrays, one element per node, value or frontier: 100,000 nodes are then parsed in a moment.
   docs/report.md says what each holds. `o` is checked. */
clv_status html_data(const clv_frontiers *f, const clv_html_options *o, strbuf *b);

#endif
