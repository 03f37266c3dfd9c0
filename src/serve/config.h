/* config.pbtxt beside the versions of a model, as Triton has it: what of it means something here. */
#ifndef SERVE_CONFIG_H
#define SERVE_CONFIG_H

#include "base/strbuf.h"

typedef struct model_config {
	char *name;            /* NULL: not said */
	int64_t max_batch;     /* max_batch_size; -1: not said */
	VEC(int64_t) versions; /* version_policy.specific; none: all of them */
	int64_t latest;        /* how many of those, the newest; INT64_MAX: all */
	strbuf unused;         /* fields that mean nothing here: "instance_group, input" */
	uint64_t digest;       /* of its text; 0: there is none */
} model_config;

/* Text of a protocol buffer. CLV_E_PARSE, with the line. model_config_free in any case. */
clv_status model_config_parse(const char *text, size_t n, model_config *out);
clv_status model_config_read(const char *folder, model_config *out); /* of folder/config.pbtxt, if there are both */
void model_config_free(model_config *c);

#endif
