/* Models and where they come from: files that are named, or a repository, a folder with <model>/<version>/<file>.clv or
 * <model>.clv. A version that runs is counted by those who use it: a new one takes its place at once, and the old one goes when
 * its last request has its answer.
 *
 * What clients call a model is compared with names that are known. It never becomes a part of a path. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "runtime/trainer.h"
#include "sandbox/sandbox.h"
#include "serve/batch.h"
#include "serve/config.h"

#define TRAINS_ALONE "steps of training run one at a time"

enum { CUTS_MOST = 16 };

typedef struct stamp {
	int64_t size, time, number;
	uint64_t config;
} stamp;

typedef struct model {
	char *name, *path; /* path: a file, or the folder of its versions */
	bool folder, wanted;
	served *now;        /* NULL: it is not loaded */
	VEC(served *) cuts; /* of `now` */
	stamp stamp;        /* of the file that was looked at last */
	char *reason;       /* why it is not loaded; NULL: nobody asked */
} model;

struct models {
	pthread_mutex_t lock;    /* of what is here */
	pthread_mutex_t loading; /* held by whoever makes a model ready; taken before `lock` */
	VEC(model) all;
};

/* ---- one version ---------------------------------------------------------------------------------------------------------- */

served *served_ref(served *m)
{
	if (m)
		atomic_fetch_add(&m->refs, 1);
	return m;
}

void served_free(served *m)
{
	if (!m || atomic_fetch_sub(&m->refs, 1) != 1)
		return;
	if (m->heir)
		tally_move(m, m->heir);
	served_free(m->heir);
	batch_free(&m->batching);
	mem_free(m->batches);
	mem_free(m->unused);
	if (!m->trainer)
		clv_runtime_free(m->runtime);
	clv_trainer_free(m->trainer);
	clv_artifact_free(m->artifact);
	mem_free(m->name);
	mem_free(m->version);
	mem_free(m);
}

static clv_status find_kind(served *m)
{
	const char *part = clv_artifact_part(m->artifact);
	if (m->runtime->part == PART_STAGE)
		return fail(CLV_E_UNSUPPORTED, "it is the stage of a pipeline (%s), which no request can run alone", part);
	m->kind = m->runtime->part == PART_ALL      ? SERVES_WHOLE
	          : m->runtime->part == PART_PREFIX ? SERVES_PREFIX
	                                            : SERVES_SUFFIX;
	if (clv_runtime_unbound(m->runtime, 0))
		return fail(CLV_E_UNSUPPORTED, "the file has no weights");
	return CLV_OK;
}

clv_trainer_options models_trainer_options(const server *s)
{
	clv_trainer_options o = CLV_TRAINER_OPTIONS_INIT;
	const clv_runtime_options *r = s->o.runtime;
	if (!r)
		return o;
	o.sandbox = r->sandbox;
	o.unproven = r->unproven;
	o.threads = r->threads;
	o.timeout = r->timeout;
	return o;
}

/* This trainer is never stepped: each session has its own. */
static clv_status open_trainer(server *s, served *m)
{
	clv_trainer_options o = models_trainer_options(s);
	if (!s->sessions)
		return fail(CLV_E_INVALID, "it trains: that needs a folder for the state of its sessions (--state)");
	TRY(clv_trainer_create(m->artifact, &o, &m->trainer));
	m->runtime = (clv_runtime *)trainer_suffix(m->trainer);
	m->kind = SERVES_TRAINING;
	m->batching.why = mem_strdup(TRAINS_ALONE, sizeof TRAINS_ALONE - 1);
	return m->batching.why ? CLV_OK : fail_nomem();
}

static clv_status open_runtime(server *s, served *m)
{
	TRY(clv_runtime_create(m->artifact, s->o.runtime, &m->runtime));
	TRY(find_kind(m));
	if (m->runtime->sandbox)
		sandbox_grow(m->runtime->sandbox, s->o.workers);
	return batch_prepare(s, m);
}

/* Takes the artifact, also on failure. */
static clv_status served_new(server *s, const char *name, const char *version, clv_artifact *a, int64_t max_batch,
                             served **out)
{
	served *m = mem_alloc(sizeof *m);
	if (!m) {
		clv_artifact_free(a);
		return fail_nomem();
	}
	m->refs = 1;
	m->artifact = a;
	m->max_batch = max_batch;
	m->name = mem_strdup(name, strlen(name));
	m->version = mem_strdup(version, strlen(version));
	clv_status st = m->name && m->version ? CLV_OK : fail_nomem();
	if (st == CLV_OK)
		st = clv_artifact_training(a) ? open_trainer(s, m) : open_runtime(s, m);
	if (st == CLV_OK)
		st = tally_open(m);
	if (st == CLV_OK)
		*out = m;
	else
		served_free(m);
	return st;
}

/* ---- files ---------------------------------------------------------------------------------------------------------------- */

static bool ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), k = strlen(end);
	return n > k && strcmp(s + n - k, end) == 0;
}

static bool is_name(const char *s)
{
	return s[0] && s[0] != '.' && !strchr(s, '/') && !strchr(s, '@');
}

static clv_status join(const char *folder, const char *name, char **out)
{
	strbuf b = STRBUF_INIT;
	strbuf_printf(&b, "%s/%s", folder, name);
	return strbuf_take(&b, out);
}

typedef bool (*entry_fn)(void *ctx, const char *name); /* false: no more */

static clv_status each_entry(const char *folder, entry_fn each, void *ctx)
{
	DIR *d = opendir(folder);
	if (!d)
		return fail(CLV_E_IO, "%s: %s", folder, strerror(errno));
	struct dirent *e;
	while ((e = readdir(d)) && each(ctx, e->d_name))
		;
	closedir(d);
	return CLV_OK;
}

typedef struct newest {
	int64_t number;
	char text[24];
	const model_config *config; /* NULL: there is none */
} newest;

static bool is_listed(const model_config *c, int64_t version)
{
	bool listed = !c || !c->versions.n;
	for (uint32_t i = 0; c && i < c->versions.n; i++)
		listed |= c->versions.at[i] == version;
	return listed;
}

static bool see_version(void *ctx, const char *name)
{
	newest *best = ctx;
	int64_t n;
	if (strlen(name) < sizeof best->text && http_number(name, &n) && n > best->number && is_listed(best->config, n)) {
		best->number = n;
		snprintf(best->text, sizeof best->text, "%s", name);
	}
	return true;
}

static bool see_file(void *ctx, const char *name)
{
	char **found = ctx;
	if (!is_name(name) || !ends_with(name, ".clv"))
		return true;
	bool better = !*found || strcmp(name, *found) < 0;
	if (better) {
		mem_free(*found);
		*found = mem_strdup(name, strlen(name));
	}
	return true;
}

/* The file of the newest version that the configuration names. */
static clv_status find_file(const model *m, const model_config *c, newest *version, char **out)
{
	char *folder, *file = NULL;
	*version = (newest){.number = 1, .text = "1"};
	if (!m->folder)
		return (*out = mem_strdup(m->path, strlen(m->path))) ? CLV_OK : fail_nomem();
	*version = (newest){.number = -1, .config = c};
	TRY(each_entry(m->path, see_version, version));
	if (version->number < 0)
		return fail(CLV_E_NOT_FOUND, "%s has no folder with a version", m->path);
	TRY(join(m->path, version->text, &folder));
	clv_status st = each_entry(folder, see_file, &file);
	if (st == CLV_OK && !file)
		st = fail(CLV_E_NOT_FOUND, "%s has no .clv file", folder);
	if (st == CLV_OK)
		st = join(folder, file, out);
	mem_free(file);
	mem_free(folder);
	return st;
}

static clv_status stamp_of(const char *path, int64_t number, stamp *out)
{
	struct stat info;
	if (stat(path, &info) != 0)
		return fail(CLV_E_IO, "%s: %s", path, strerror(errno));
	*out = (stamp){info.st_size, info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec,
	               (int64_t)info.st_ino ^ (number << 40), 0};
	return CLV_OK;
}

static clv_status open_with(server *s, const model *m, const model_config *c, stamp *when, served **out)
{
	newest version;
	char *path;
	clv_artifact *a;
	clv_open_options o = s->o.open ? *s->o.open : (clv_open_options)CLV_OPEN_OPTIONS_INIT;
	o.copy = true;
	TRY(find_file(m, c, &version, &path));
	clv_status st = stamp_of(path, version.number, when);
	when->config = c->digest;
	if (st == CLV_OK && c->name && c->name[0] && strcmp(c->name, m->name) != 0)
		st = fail(CLV_E_INVALID, "config.pbtxt is of the model \"%s\", its folder is called \"%s\"", c->name, m->name);
	if (st == CLV_OK)
		st = clv_artifact_open(path, &o, &a);
	if (st == CLV_OK)
		st = served_new(s, m->name, version.text, a, c->max_batch, out);
	mem_free(path);
	return st;
}

static clv_status open_version(server *s, const model *m, stamp *when, served **out)
{
	model_config c;
	clv_status st = model_config_read(m->folder ? m->path : NULL, &c);
	if (st == CLV_OK)
		st = open_with(s, m, &c, when, out);
	if (st == CLV_OK && c.unused.n) {
		server_say(s, "model %s: these fields of config.pbtxt change nothing here: %.*s", m->name, (int)c.unused.n,
		           c.unused.at);
		(void)strbuf_take(&c.unused, &(*out)->unused);
	}
	model_config_free(&c);
	return st;
}

/* ---- the list ---------------------------------------------------------------------------------------------------------------- */

static model *find(models *l, const char *name, size_t n)
{
	for (uint32_t i = 0; i < l->all.n; i++)
		if (strlen(l->all.at[i].name) == n && !memcmp(l->all.at[i].name, name, n))
			return &l->all.at[i];
	return NULL;
}

static void drop_cuts(model *m)
{
	for (uint32_t i = 0; i < m->cuts.n; i++)
		served_free(m->cuts.at[i]);
	vec_free(&m->cuts);
}

static clv_status add_model(models *l, const char *name, size_t n, const char *path, bool folder, bool wanted)
{
	model m = {.folder = folder, .wanted = wanted};
	m.name = mem_strdup(name, n);
	m.path = mem_strdup(path, strlen(path));
	clv_status st = m.name && m.path ? vec_push(&l->all, m) : fail_nomem();
	if (st != CLV_OK) {
		mem_free(m.name);
		mem_free(m.path);
	}
	return st;
}

/* With `loading` held: nobody else changes the list, so that others may look at it meanwhile. */
static clv_status add_locked(models *l, const char *name, size_t n, const char *path, bool folder, bool wanted)
{
	pthread_mutex_lock(&l->lock);
	clv_status st = add_model(l, name, n, path, folder, wanted);
	pthread_mutex_unlock(&l->lock);
	return st;
}

static void put_in_place(models *l, uint32_t i, served *now, const stamp *when, const char *reason)
{
	pthread_mutex_lock(&l->lock);
	model *m = &l->all.at[i];
	served *old = NULL;
	model cuts = {0};
	if (now || !reason) {
		old = m->now;
		m->now = now;
		cuts.cuts.at = m->cuts.at, cuts.cuts.n = m->cuts.n, cuts.cuts.cap = m->cuts.cap;
		m->cuts.at = NULL, m->cuts.n = m->cuts.cap = 0;
	}
	mem_free(m->reason);
	m->reason = reason ? mem_strdup(reason, strlen(reason)) : NULL;
	if (when)
		m->stamp = *when;
	if (old && now && strcmp(old->version, now->version) == 0) {
		tally_move(old, now);
		old->heir = served_ref(now);
	}
	pthread_mutex_unlock(&l->lock);
	served_free(old);
	drop_cuts(&cuts);
}

/* What cannot be loaded does not take the place of what runs. */
static clv_status load(server *s, uint32_t i)
{
	models *l = s->models;
	stamp when = {0};
	served *now = NULL;
	clv_status st = open_version(s, &l->all.at[i], &when, &now);
	if (st == CLV_OK)
		server_say(s, "model %s version %s is ready (%s%s)", now->name, now->version, clv_runtime_engine(now->runtime),
		           clv_runtime_sandboxed(now->runtime) ? ", in a sandbox" : "");
	else
		server_say(s, "model %s cannot be loaded: %s", l->all.at[i].name, status_message());
	put_in_place(l, i, now, &when, st == CLV_OK ? NULL : clv_status_name(st));
	return st;
}

static bool changed(const model *m)
{
	newest version;
	char *path = NULL;
	stamp when;
	model_config c;
	bool differs = false;
	if (model_config_read(m->folder ? m->path : NULL, &c) == CLV_OK && find_file(m, &c, &version, &path) == CLV_OK &&
	    stamp_of(path, version.number, &when) == CLV_OK) {
		when.config = c.digest;
		differs = memcmp(&when, &m->stamp, sizeof when) != 0;
	} /* otherwise it is gone, or being written: what runs goes on */
	mem_free(path);
	model_config_free(&c);
	return differs;
}

/* ---- the repository ------------------------------------------------------------------------------------------------------------ */

typedef struct scan {
	server *s;
	clv_status st;
} scan;

static bool see_model(void *ctx, const char *name)
{
	scan *c = ctx;
	struct stat info;
	char *path;
	if (!is_name(name) || join(c->s->o.repository, name, &path) != CLV_OK)
		return true;
	bool there = stat(path, &info) == 0, folder = there && S_ISDIR(info.st_mode);
	size_t n = strlen(name) - (folder ? 0 : ends_with(name, ".clv") ? 4 : strlen(name));
	if (there && n && !find(c->s->models, name, n))
		c->st = add_locked(c->s->models, name, n, path, folder, true);
	mem_free(path);
	return c->st == CLV_OK;
}

static clv_status scan_repository(server *s)
{
	scan c = {.s = s};
	if (!s->o.repository)
		return CLV_OK;
	TRY(each_entry(s->o.repository, see_model, &c));
	return c.st;
}

/* "name=path", or a path whose file name without its ending is the name. */
static clv_status add_named(server *s, const char *text)
{
	const char *equals = strchr(text, '='), *slash = strrchr(text, '/');
	const char *path = equals && (!slash || equals < strchr(text, '/')) ? equals + 1 : text;
	const char *name = path == text ? (slash ? slash + 1 : text) : text;
	size_t n = path == text ? strlen(name) : (size_t)(equals - text);
	if (path == text && ends_with(name, ".clv"))
		n -= 4;
	for (size_t i = 0; i < n; i++)
		if (strchr("/@?#%", name[i]) || (unsigned char)name[i] <= ' ')
			return fail(CLV_E_INVALID, "\"%.*s\" is no name for a model; NAME=FILE gives it another", (int)n, name);
	if (!n || find(s->models, name, n))
		return fail(CLV_E_INVALID, "there are two models of the name \"%.*s\"; NAME=FILE gives one another", (int)n,
		            name);
	return add_model(s->models, name, n, path, false, true);
}

static clv_status load_all(server *s)
{
	for (uint32_t i = 0; i < s->models->all.n; i++) {
		bool named = !s->o.repository || i < s->o.nmodels;
		clv_status st = load(s, i);
		if (st != CLV_OK && (named || st == CLV_E_NOMEM))
			return fail_more(st, "model %s", s->models->all.at[i].name);
	}
	return CLV_OK;
}

clv_status models_open(server *s)
{
	models *l = mem_alloc(sizeof *l);
	TRY_MEM(l);
	s->models = l;
	pthread_mutex_init(&l->lock, NULL);
	pthread_mutex_init(&l->loading, NULL);
	for (uint32_t i = 0; i < s->o.nmodels; i++)
		TRY(add_named(s, s->o.models[i]));
	TRY(scan_repository(s));
	return load_all(s);
}

void models_close(server *s)
{
	models *l = s->models;
	if (!l)
		return;
	for (uint32_t i = 0; i < l->all.n; i++) {
		model *m = &l->all.at[i];
		drop_cuts(m);
		served_free(m->now);
		mem_free(m->name);
		mem_free(m->path);
		mem_free(m->reason);
	}
	vec_free(&l->all);
	pthread_mutex_destroy(&l->lock);
	pthread_mutex_destroy(&l->loading);
	mem_free(l);
	s->models = NULL;
}

/* ---- changes while it runs ---------------------------------------------------------------------------------------------------------- */

static served *find_now(models *l, const char *name, size_t n, const char *version)
{
	pthread_mutex_lock(&l->lock);
	model *m = find(l, name, n);
	served *found = m && m->now && (!version || !strcmp(version, m->now->version)) ? served_ref(m->now) : NULL;
	pthread_mutex_unlock(&l->lock);
	return found;
}

static clv_status unknown(models *l, const char *name, const char *version)
{
	served *other = version ? find_now(l, name, strcspn(name, "@"), NULL) : NULL;
	clv_status st = CLV_OK;
	if (other)
		st = fail(CLV_E_NOT_FOUND,
		          "Request for unknown model: '%.128s' version %.24s is not found; only the newest is served, %s", name,
		          version, other->version);
	else if (version)
		st = fail(CLV_E_NOT_FOUND, "Request for unknown model: '%.128s' version %.24s is not found", name, version);
	served_free(other);
	if (version)
		return st;
	return fail(CLV_E_NOT_FOUND, "Request for unknown model: '%.128s' is not found", name);
}

static void want(models *l, model *m, bool wanted)
{
	pthread_mutex_lock(&l->lock);
	m->wanted = wanted;
	pthread_mutex_unlock(&l->lock);
}

clv_status models_load(server *s, const char *name)
{
	models *l = s->models;
	pthread_mutex_lock(&l->loading);
	clv_status st = find(l, name, strlen(name)) ? CLV_OK : scan_repository(s);
	model *m = find(l, name, strlen(name));
	if (st == CLV_OK && !m)
		st = fail(CLV_E_NOT_FOUND, "failed to load '%.128s', no such model in the repository", name);
	if (st == CLV_OK) {
		want(l, m, true);
		st = load(s, (uint32_t)(m - l->all.at));
		if (st != CLV_OK && st != CLV_E_NOMEM)
			st = fail(CLV_E_INVALID, "failed to load '%.128s' (%s); the log of the server says why", name,
			          clv_status_name(st));
	}
	pthread_mutex_unlock(&l->loading);
	return st;
}

clv_status models_unload(server *s, const char *name)
{
	models *l = s->models;
	pthread_mutex_lock(&l->loading);
	model *m = find(l, name, strlen(name));
	if (m) {
		want(l, m, false);
		put_in_place(l, (uint32_t)(m - l->all.at), NULL, NULL, NULL);
	}
	pthread_mutex_unlock(&l->loading);
	return m ? CLV_OK : unknown(l, name, NULL);
}

void models_poll(server *s, bool all)
{
	models *l = s->models;
	pthread_mutex_lock(&l->loading);
	uint32_t before = l->all.n;
	if (scan_repository(s) != CLV_OK)
		server_say(s, "the repository cannot be read: %s", status_message());
	for (uint32_t i = 0; i < l->all.n; i++)
		if (l->all.at[i].wanted && (i >= before || all || changed(&l->all.at[i])))
			(void)load(s, i);
	pthread_mutex_unlock(&l->loading);
}

/* ---- finding -------------------------------------------------------------------------------------------------------------------------- */

bool models_is_quick(const char *name)
{
	return !strchr(name, '@');
}

static served *find_cut(models *l, const served *of, const char *name)
{
	served *found = NULL;
	pthread_mutex_lock(&l->lock);
	for (uint32_t i = 0; i < l->all.n && !found; i++)
		for (uint32_t k = 0; l->all.at[i].now == of && k < l->all.at[i].cuts.n; k++)
			if (strcmp(l->all.at[i].cuts.at[k]->name, name) == 0)
				found = served_ref(l->all.at[i].cuts.at[k]);
	pthread_mutex_unlock(&l->lock);
	return found;
}

/* The oldest goes where there are many. */
static clv_status keep_cut(models *l, const served *of, served *cut)
{
	clv_status st = CLV_OK;
	served *old = NULL;
	pthread_mutex_lock(&l->lock);
	for (uint32_t i = 0; i < l->all.n; i++) {
		model *m = &l->all.at[i];
		if (m->now != of)
			continue;
		if (m->cuts.n == CUTS_MOST) {
			old = m->cuts.at[0];
			memmove(m->cuts.at, m->cuts.at + 1, --m->cuts.n * sizeof *m->cuts.at);
		}
		st = vec_push(&m->cuts, cut);
		if (st == CLV_OK)
			served_ref(cut);
	}
	pthread_mutex_unlock(&l->lock);
	served_free(old);
	return st;
}

/* The suffix of a whole model, on its weights. */
static clv_status make_cut(server *s, const served *of, const char *name, const char *where, served **out)
{
	clv_artifact *half;
	clv_split_options o = CLV_SPLIT_OPTIONS_INIT;
	o.boundary = where;
	if (of->kind != SERVES_WHOLE)
		return fail(CLV_E_INVALID, "model '%s' is a part already, and cannot be cut", of->name);
	TRY(artifact_half(of->artifact, &o, false, &half));
	TRY(served_new(s, name, of->version, half, of->max_batch, out));
	clv_status st = keep_cut(s->models, of, *out);
	if (st != CLV_OK)
		served_free(*out);
	return st;
}

static clv_status find_or_cut(server *s, served *of, const char *name, const char *where, served **out)
{
	*out = find_cut(s->models, of, name);
	if (*out)
		return CLV_OK;
	pthread_mutex_lock(&s->models->loading);
	*out = find_cut(s->models, of, name);
	clv_status st = *out ? CLV_OK : make_cut(s, of, name, where, out);
	pthread_mutex_unlock(&s->models->loading);
	return st;
}

served *models_quick(server *s, const char *name, const char *version)
{
	const char *at = strchr(name, '@');
	served *of = find_now(s->models, name, at ? (size_t)(at - name) : strlen(name), version);
	served *found = of && at ? find_cut(s->models, of, name) : served_ref(of);
	served_free(of);
	return found;
}

clv_status models_find(server *s, const char *name, const char *version, served **out)
{
	const char *at = strchr(name, '@');
	served *of = find_now(s->models, name, at ? (size_t)(at - name) : strlen(name), version);
	if (!of)
		return unknown(s->models, name, version);
	if (!at) {
		*out = of;
		return CLV_OK;
	}
	clv_status st = find_or_cut(s, of, name, at + 1, out);
	served_free(of);
	return st;
}

bool models_ready(server *s)
{
	models *l = s->models;
	bool ready = true;
	pthread_mutex_lock(&l->lock);
	for (uint32_t i = 0; i < l->all.n; i++)
		ready &= !l->all.at[i].wanted || l->all.at[i].now;
	pthread_mutex_unlock(&l->lock);
	return ready;
}

clv_status models_index(server *s, bool ready_only, index_fn each, void *ctx)
{
	models *l = s->models;
	clv_status st = CLV_OK;
	pthread_mutex_lock(&l->lock);
	for (uint32_t i = 0; i < l->all.n && st == CLV_OK; i++) {
		const model *m = &l->all.at[i];
		if (!ready_only || m->now)
			st = each(ctx, m->name, m->now ? m->now->version : "", m->now != NULL,
			          m->reason ? m->reason
			          : m->now  ? ""
			                    : "unloaded");
	}
	pthread_mutex_unlock(&l->lock);
	return st;
}

typedef VEC(served *) served_list;

static clv_status collect_one(served_list *to, served *m, const char *name, const char *version)
{
	if (!m || (name && strcmp(m->name, name) != 0) || (version && strcmp(m->version, version) != 0))
		return CLV_OK;
	TRY(vec_push(to, m));
	served_ref(m);
	return CLV_OK;
}

/* Models, and the cuts of each that are kept. */
static clv_status collect(models *l, const char *name, const char *version, served_list *out)
{
	clv_status st = CLV_OK;
	pthread_mutex_lock(&l->lock);
	for (uint32_t i = 0; i < l->all.n && st == CLV_OK; i++) {
		const model *m = &l->all.at[i];
		st = collect_one(out, m->now, name, version);
		for (uint32_t k = 0; k < m->cuts.n && st == CLV_OK; k++)
			st = collect_one(out, m->cuts.at[k], name, version);
	}
	pthread_mutex_unlock(&l->lock);
	return st;
}

clv_status models_each(server *s, const char *name, const char *version, clv_status (*each)(void *ctx, served *m),
                       void *ctx)
{
	served_list all = {0};
	clv_status st = collect(s->models, name, version, &all);
	bool none = !all.n;
	for (uint32_t i = 0; i < all.n; i++) {
		if (st == CLV_OK)
			st = each(ctx, all.at[i]);
		served_free(all.at[i]);
	}
	vec_free(&all);
	return st == CLV_OK && name && none ? unknown(s->models, name, version) : st;
}
