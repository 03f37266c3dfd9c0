/* Compiling segments: jobs in child processes, their results, and a cache of these.
 *
 * A job is a folder. The caller writes segment.clv (the nodes as an artifact of part "segment", with the weights they read)
 * and job.json (job_write) into it. The compiler is a program that is started in the folder, reads both, and leaves
 * result.json and the members it made, or error.json. Its output goes to compile.log. The folder is the same for all back
 * ends, so a person can look at it and start the compiler again by hand. Nothing here needs torch. */
#pragma once

#include "base/arena.h"
#include "base/digest.h"
#include "file/artifact.h"
#include "file/folders.h"

/* ---- what a compiler makes: compiled.c ----------------------------------------------------------------------------- */

/* A file of it: "model.so"; "model.xml" and "model.bin". */
typedef struct compiled_member {
	const char *name;
	const void *data; /* owned by `compiled`, or borrowed from the artifact it came from */
	size_t n;
} compiled_member;

/* What a back end made of a segment: bytes, and what they need to run ("torch" "2.13.0", "cpu" "avx2 avx512f"). */
typedef struct compiled {
	VEC(compiled_member) members;
	VEC(artifact_note) needs;
	VEC(artifact_note) notes; /* what the compiler says about it: "kernels" "14" */
	VEC(void *) owned;
	arena arena;
} compiled;

void compiled_free(compiled *c); /* all zero bytes after, and before it is filled */
/* The name is a plain file name that no other member has, else CLV_E_INVALID. NULL for data is a failed allocation. */
clv_status compiled_add(compiled *c, const char *name, void *data /* taken, also on failure */, size_t n);
clv_status compiled_own(compiled *c); /* its members are copies, which nobody else can change */
clv_status compiled_need(compiled *c, const char *key, const char *text);
clv_status compiled_note(compiled *c, const char *key, const char *text);
const char *compiled_need_of(const compiled *c, const char *key); /* NULL: it needs nothing of this kind */
const compiled_member *compiled_find(const compiled *c, const char *name);
/* A file of its own, as the cache has it (a safetensors file, checked by digests); hostile bytes when it is read. */
clv_status compiled_save(const compiled *c, const char *path); /* whole or not at all */
clv_status compiled_load(const char *path, compiled *out);
/* The steps of both, for the cache: what is saved under a key (a word; "": none) is read back under that key alone. */
clv_status compiled_write(const compiled *c, const char *key, const char *path, st_pending *out);
clv_status compiled_parse(uint8_t *data /* taken, also on failure */, size_t n, const char *key, compiled *out);

/* ---- weights that are stored once: pieces.c -------------------------------------------------------------------------- */

/* Members of a segment without what they have in common with these tensors of the artifact, which owns them afterwards. */
clv_status pieces_split(artifact *a, const uint32_t *tensors, uint32_t n, artifact_segment *s);
/* The members as a compiler made them, borrowed where they are whole. a: the artifact that has the segment; NULL: its members
   are whole. CLV_E_UNSUPPORTED: tensors were changed since. */
clv_status pieces_join(const artifact *a, const artifact_segment *s, compiled *out);

/* ---- jobs: job.c ---------------------------------------------------------------------------------------------------- */

typedef struct job_size {
	const char *symbol;
	int64_t low, high, example; /* low == high: fixed */
} job_size;

typedef struct job_tensor {
	const char *dtype; /* "f32" */
	const char *device;
	uint32_t ndim;
	const char *const *shape; /* "B", "3", "4*B+1" */
	const uint32_t *order;    /* dimensions from the slowest to the fastest in memory; NULL: row by row */
} job_tensor;

typedef struct job_spec {
	const char *backend;
	const char *const *args; /* compiler_args */
	uint32_t nargs;
	const job_size *sizes;
	uint32_t nsizes;
	const job_tensor *inputs; /* of the segment, in the order of its view's inputs */
	uint32_t ninputs;
	uint32_t threads; /* that the compiler may use; 0: as it likes */
} job_spec;

clv_status job_write(const job_spec *s, const char *dir); /* job.json; whole or not at all */

/* A name for the result: equal for equal segments (plan text without source lines, weights, sizes, layouts), back ends and
   their versions, arguments, and machines. `setting`: version of compiler and torch, CPU features, as one text. */
clv_status job_key(const job_spec *s, const artifact *segment, const char *setting, digest *out);

/* ---- folders: folder.c ------------------------------------------------------------------------------------------------ */

/* Folders are made for their owner alone (mode 0700), with what is missing above them. */
clv_status folder_make_temporary(char **out); /* under $TMPDIR, else /tmp; caller frees, after folder_remove */
/* base/name for one job, empty but for a mark. What a former run left there is removed; a folder that has no mark, and is
   not empty, is refused: CLV_E_IO. Caller frees. */
clv_status job_folder_make(const char *base, const char *name, char **out);
clv_status folder_remove(const char *path); /* with all that is in it; links are removed, not followed */

/* A regular file of a folder, `most` bytes at most; CLV_E_NOT_FOUND: there is none, CLV_E_IO. Caller frees. */
clv_status folder_read(const char *dir, const char *name, size_t most, uint8_t **data, size_t *n);
/* Whole or not at all; CLV_E_IO. */
clv_status folder_write(const char *dir, const char *name, const void *data, size_t n);
clv_status path_absolute(const char *path, char **out); /* caller frees */
bool plain_file_name(const char *name);                 /* no way to another folder, nothing that steers a terminal */

/* ---- child processes: child.c, warm.c, jobs.c, result.c ------------------------------------------------------------------------ */

typedef enum job_state { JOB_WAITS, JOB_RUNS, JOB_DONE, JOB_FAILED, JOB_TIMEOUT, JOB_CANCELLED } job_state;

/* All zero but for name, dir and warm when it is given to jobs_run. */
typedef struct job {
	const char *name; /* for progress: "segment 2" */
	const char *dir;
	bool warm; /* a compiler that waits for jobs may split it off (warm.c); devices do not outlive that */
	/* set when it ended */
	job_state state;
	double seconds;
	compiled made; /* DONE */
	char *message; /* FAILED, TIMEOUT: what the compiler said, or how it died ("killed by signal 11"); owned */
	bool argument; /* FAILED: an argument for the compiler (job_spec.args) is wrong; other segments would fail alike */
	char **blamed; /* FAILED: names of nodes (node_name of the plan in segment.clv) that the compiler blamed; owned */
	uint32_t nblamed;
} job;

typedef struct jobs_spec {
	const char *const *argv; /* the compiler; the job's folder is added as its last argument, or --serve. NULL ends */
	const char *const *env;  /* "NAME=text", added to our environment for the child; NULL ends; may be NULL */
	double timeout;          /* seconds per job; 0: none */
	uint32_t parallel;       /* jobs at a time; 0: as there are cores */
	/* Called on the calling thread when a job starts, ends, and every 0.2 s between; false: stop everything. May be NULL. */
	bool (*tick)(void *ctx, const job *jobs, uint32_t n);
	void *ctx;
} jobs_spec;

/* Runs all jobs to their end. A job that fails is no error of this function; one that `tick` stopped is CANCELLED. When a
   job ends, on a timeout, a stop, an error or the end of this process or thread every process of the job is killed, however
   it was started. The caller's own children, and its handlers of signals, notice nothing. */
clv_status jobs_run(job *jobs, uint32_t n, const jobs_spec *s);
void job_free(job *j); /* what it owns */

/* ---- the cache: cache.c ------------------------------------------------------------------------------------------------ */

/* A folder with a file per key. Entries are code that will run: folder and files must be ours, and writable by nobody else.
   A damaged or foreign file is no hit, and is removed. Writing is whole or not at all; that it failed (a full disk) is
   told, and costs the entry alone. Entries that were not used for longest go when it grows beyond `limit` bytes. */
typedef struct cache {
	char *dir; /* owned */
	int64_t limit;
} cache;

/* dir NULL: $CLEAVE_CACHE, else $XDG_CACHE_HOME/cleave, else ~/.cache/cleave; "" or "off": no cache. limit 0: $CLEAVE_CACHE_LIMIT
   in bytes, else 8 GB. */
clv_status cache_open(const char *dir, int64_t limit, cache *out); /* CLV_E_IO says why this folder is no cache */
void cache_close(cache *c);
clv_status cache_get(const cache *c, digest key, compiled *out, bool *found);
clv_status cache_put(const cache *c, digest key, const compiled *made);

/* ---- seals: seal.c ----------------------------------------------------------------------------------------------------- */

/* For a segment of plan `p`; its members are whole in `made`. "": there is no key here, and can be none. */
clv_status seal_make(const plan *p, const artifact_segment *s, const compiled *made, char out[SEAL_TEXT]);
/* Whether this user's key made the seal that the segment has. */
clv_status seal_check(const plan *p, const artifact_segment *s, const compiled *made, bool *ours);

/* ---- machines: machine.c ----------------------------------------------------------------------------------------------- */

/* The features of this CPU that code can depend on, sorted, as one text: "avx avx2 avx512f …" (x86), "asimd sve …" (Arm). */
clv_status machine_features(strbuf *out);
/* Whether all features in `needed` are here; else the first that is missing in *lacks (borrowed from needed, *n bytes). */
clv_status machine_has(const char *needed, bool *yes, const char **lacks, size_t *n);
