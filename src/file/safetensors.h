/* Safetensors files: named tensors and texts, in a form that any reader of that format opens.
 *
 * A file is 8 bytes with the length of the header (little endian), the header (JSON, padded with spaces so that the data
 * starts at a multiple of 8) and the data of all tensors without gaps. What is read is taken as hostile: everything that
 * st_parse lets through has been checked, and its entries point into the caller's bytes. */
#pragma once

#include "base/strbuf.h"
#include "plan/plan.h"

#define ST_MEDIA_TYPE "application/x-safetensors"
#define ST_HEADER_MAX 100000000 /* the format's own limit */
enum { ST_MAPPED_ALIGN = 64 };

typedef struct st_entry {
	const char *name; /* NUL-terminated UTF-8; written: borrowed from the caller, read: from the st_file */
	dtype dtype;      /* one that st_dtype_name knows */
	uint32_t ndim;
	const int64_t *shape; /* as name */
	const void *data;     /* written: borrowed from the caller, read: from the bytes given */
	size_t nbytes;
	size_t begin; /* read: where in the data it starts */
} st_entry;

/* A text of the header's __metadata__. */
typedef struct st_text {
	const char *key, *text;
	size_t n;
} st_text;

const char *st_dtype_name(dtype d); /* "F32"; NULL: the format has no such type */

/* Bytes of a dense tensor; CLV_E_OVERFLOW, or CLV_E_INVALID for a negative size. */
clv_status shape_bytes(dtype d, uint32_t ndim, const int64_t *shape, size_t *out);

/* A bool that is neither 0 nor 1 would be read as both. Which of them is, n: none; of other types nothing is looked at. */
size_t bools_odd(dtype d, const void *data, size_t n);
clv_status bools_check(dtype d, const void *data, size_t n); /* CLV_E_PARSE */

/* ---- reading ---------------------------------------------------------------------------------------------------- */

typedef struct st_file st_file;

size_t st_header_bytes(const void *data, size_t n);             /* 0: there is none */
clv_status st_parse(const void *data, size_t n, st_file **out); /* borrows data; caller frees */
void st_free(st_file *f);
uint32_t st_count(const st_file *f);
size_t st_header_size(const st_file *f);                               /* where the data starts */
const st_entry *st_at(const st_file *f, uint32_t i);                   /* in the order of the data */
uint32_t st_find(const st_file *f, const char *name);                  /* NONE if there is none */
const char *st_metadata(const st_file *f, const char *key, size_t *n); /* NULL if there is none */

/* ---- writing ---------------------------------------------------------------------------------------------------- */

/* Where everything goes: made once, then put out as often as wanted while the entries are still there. */
typedef struct st_image {
	const st_entry *entries; /* borrowed */
	uint32_t *order;         /* of the entries in the file: wide types first, so that each is aligned */
	uint32_t n;
	char *head; /* length and header */
	size_t head_n, total;
} st_image;

clv_status st_layout(const st_entry *entries, uint32_t n, const st_text *texts, uint32_t ntexts, st_image *out);
/* For a file that will be mapped: the data starts at a multiple of ST_MAPPED_ALIGN, entries are in the order given. */
clv_status st_layout_mapped(const st_entry *entries, uint32_t n, const st_text *texts, uint32_t ntexts, st_image *out);
void st_image_free(st_image *i);
void st_copy(const st_image *i, void *to); /* i->total bytes */
clv_status st_append(const st_image *i, strbuf *b);
clv_status st_save(const st_image *i, const char *path); /* the file is there whole or not at all; CLV_E_IO */

/* The two steps of st_save, for several files that belong together: all are written before any takes its place. */
typedef struct st_pending { /* all zero: none */
	char *path;             /* its place */
	char *name;             /* where it is until then; NULL: nowhere */
	int fd;                 /* locked */
} st_pending;
clv_status st_write(const st_image *i, const char *path, st_pending *out); /* CLV_E_IO: nothing is pending */
clv_status st_commit(st_pending *f);                                       /* ends it, either way; CLV_E_IO */
void st_drop(st_pending *f);

/* Test hook: step number `n` of what st_save does from now on fails with this errno (n 0: none does). error 0: the process
   is killed there. Per thread. */
void disk_fault_after(uint64_t n, int error);
bool disk_fault_waits(void); /* that step has not come yet */

/* Bytes of a file that is mapped: pages are read when they are touched. Written pages are the process's own. A file that
   is made shorter while it is mapped ends the process; st_save never does that. */
typedef struct mapping {
	uint8_t *at; /* NULL: an empty file */
	size_t n;
} mapping;
/* A regular file, for reading: mapped, or a copy that no change of the file reaches. CLV_E_IO. */
clv_status file_map(const char *path, bool copy, mapping *out);
/* Nothing that happens to the file reaches the first n bytes of a mapped one any more. */
clv_status mapping_own(const mapping *m, size_t n);
/* The same for all bytes, which stay where they are. CLV_E_IO: the file became shorter; nothing has changed. */
clv_status mapping_settle(const mapping *m);
/* A file in memory, as a copy of it would be. */
clv_status image_map(const st_image *i, mapping *out);
void file_unmap(mapping *m);

/* The whole of a regular file; caller frees with mem_free. CLV_E_IO. */
clv_status file_read(const char *path, uint8_t **data, size_t *n);
clv_status file_read_most(const char *path, size_t most, uint8_t **data, size_t *n); /* one that is larger is refused */

/* A new file; one that is there is left alone. secret: for its owner alone. CLV_E_IO. */
clv_status file_create(const char *path, const void *data, size_t n, bool secret);
