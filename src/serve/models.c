/* Models and where they come from: files that are named, or a repository, a folder with <model>/<version>/<file>.clv or
 * <model>.clv. Of a model those versions run that its configuration names, else the newest. One that runs is counted by those who
 * use it: what is loaded takes its place at once, and the old one goes when its last request has its answer.
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

enum { CUTS_MOST = 16, VERSION_TEXT = 24 };

typedef struct stamp {
	int64_t size, time, number;
	uint64_t config;
} stamp;

/* What a folder is called that has a version. */
typedef struct version_name {
	int64_t number;
	char text[VERSION_TEXT];
} version_name;

typedef VEC(version_name) version_names;

typedef struct known_version {
	version_name is;
	served *now;  /* NULL: it could not be loaded */
	stamp stamp;  /* of the file that was looked at last */
	char *reason; /* why that cannot be loaded; NULL: it can */
} known_version;

typedef struct model {
	char *name, *path; /* path: a file, or the folder of its versions */
	bool folder, wanted;
	VEC(known_version) versions; /* the newest first */
	VEC(served *) cuts;          /* of those */
	char *reason;                /* why there are none; NULL: nobody asked */
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
	size_t n = strlen(s);
	for (size_t i = 0; i < n; i++) /* names go into logs and metrics */
		if ((unsigned char)s[i] < 0x20 || s[i] == 0x7F || utf8_control(s + i, n - i))
			return false;
	return n && s[0] != '.' && !strchr(s, '/') && !strchr(s, '@') && utf8_valid(s, n);
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

typedef struct listing {
	version_names *to;
	clv_status st;
} listing;

static bool see_version(void *ctx, const char *name)
{
	listing *l = ctx;
	version_name v;
	if (strlen(name) >= sizeof v.text || !http_number(name, &v.number))
		return true;
	snprintf(v.text, sizeof v.text, "%s", name);
	l->st = vec_push(l->to, v);
	return l->st == CLV_OK;
}

static int newest_first(const void *a, const void *b)
{
	const version_name *x = a, *y = b;
	return x->number > y->number ? -1 : x->number < y->number ? 1 : strcmp(x->text, y->text);
}

static bool is_named(const model_config *c, int64_t number)
{
	bool named = !c->versions.n;
	for (uint32_t i = 0; i < c->versions.n; i++)
		named |= c->versions.at[i] == number;
	return named;
}

/* Those of all that the configuration wants. A number that two folders have counts once. */
static void choose_versions(const model_config *c, version_names *all)
{
	uint32_t kept = 0;
	if (all->n)
		qsort(all->at, all->n, sizeof *all->at, newest_first);
	for (uint32_t i = 0; i < all->n; i++) {
		bool again = kept && all->at[kept - 1].number == all->at[i].number;
		if (!again && is_named(c, all->at[i].number) && (int64_t)kept < c->latest)
			all->at[kept++] = all->at[i];
	}
	all->n = kept;
}

/* The newest first. */
static clv_status list_versions(const model *m, const model_config *c, version_names *out)
{
	static const version_name only = {.number = 1, .text = "1"};
	if (!m->folder)
		return vec_push(out, only);
	listing l = {.to = out};
	TRY(each_entry(m->path, see_version, &l));
	TRY(l.st);
	choose_versions(c, out);
	return out->n ? CLV_OK : fail(CLV_E_NOT_FOUND, "%s has no folder with a version that is to be served", m->path);
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

static clv_status find_file(const model *m, const version_name *v, char **out)
{
	char *folder, *file = NULL;
	if (!m->folder)
		return (*out = mem_strdup(m->path, strlen(m->path))) ? CLV_OK : fail_nomem();
	TRY(join(m->path, v->text, &folder));
	clv_status st = each_entry(folder, see_file, &file);
	if (st == CLV_OK && !file)
		st = fail(CLV_E_NOT_FOUND, "%s has no .clv file", folder);
	if (st == CLV_OK)
		st = join(folder, file, out);
	mem_free(file);
	mem_free(folder);
	return st;
}

static clv_status stamp_of(const char *path, uint64_t config, stamp *out)
{
	struct stat info;
	if (stat(path, &info) != 0)
		return fail(CLV_E_IO, "%s: %s", path, strerror(errno));
	*out = (stamp){info.st_size, info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec, (int64_t)info.st_ino, config};
	return CLV_OK;
}

/* The file of a version, NULL on failure, and what it is like. */
static clv_status look_at(const model *m, const model_config *c, const version_name *v, char **path, stamp *when)
{
	TRY(find_file(m, v, path));
	clv_status st = stamp_of(*path, c->digest, when);
	if (st != CLV_OK) {
		mem_free(*path);
		*path = NULL;
	}
	return st;
}

static clv_status open_version(server *s, const model *m, const model_config *c, const version_name *v,
                               const char *path, served **out)
{
	clv_artifact *a;
	TRY(clv_artifact_open(path, s->o.open, &a));
	TRY(served_new(s, m->name, v->text, a, c->max_batch, out));
	(*out)->unused = c->unused.n ? mem_strdup(c->unused.at, c->unused.n) : NULL;
	return CLV_OK;
}

/* What clients see of a model is asked for by all of this. */
static clv_status read_config(const model *m, model_config *c, version_names *versions)
{
	TRY(model_config_read(m->folder ? m->path : NULL, c));
	if (c->name && c->name[0] && strcmp(c->name, m->name) != 0)
		return fail(CLV_E_INVALID, "config.pbtxt is of the model \"%s\", its folder is called \"%s\"", c->name,
		            m->name);
	return list_versions(m, c, versions);
}

/* ---- the list ---------------------------------------------------------------------------------------------------------------- */

static model *find(models *l, const char *name, size_t n)
{
	for (uint32_t i = 0; i < l->all.n; i++)
		if (strlen(l->all.at[i].name) == n && !memcmp(l->all.at[i].name, name, n))
			return &l->all.at[i];
	return NULL;
}

/* With the lock. */
static known_version *find_version(model *m, const char *text)
{
	for (uint32_t k = 0; k < m->versions.n; k++)
		if (strcmp(m->versions.at[k].is.text, text) == 0)
			return &m->versions.at[k];
	return NULL;
}

/* text NULL: the newest that runs. */
static served *running(model *m, const char *text)
{
	for (uint32_t k = 0; k < m->versions.n; k++)
		if (m->versions.at[k].now && (!text || strcmp(m->versions.at[k].is.text, text) == 0))
			return m->versions.at[k].now;
	return NULL;
}

static bool is_running(model *m, const served *which)
{
	return which && running(m, which->version) == which;
}

typedef VEC(served *) served_list;

static void free_list(served_list *l)
{
	for (uint32_t i = 0; i < l->n; i++)
		served_free(l->at[i]);
	vec_free(l);
}

/* Out of the list, to be released without the lock: what has no room to wait is released at once. */
static void take_cuts(model *m, const char *version, served_list *to)
{
	uint32_t kept = 0;
	for (uint32_t k = 0; k < m->cuts.n; k++) {
		served *cut = m->cuts.at[k];
		if (strcmp(cut->version, version) != 0)
			m->cuts.at[kept++] = cut;
		else if (vec_push(to, cut) != CLV_OK)
			served_free(cut);
	}
	m->cuts.n = kept;
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

static void set_text(char **at, const char *text)
{
	mem_free(*at);
	*at = text ? mem_strdup(text, strlen(text)) : NULL;
}

/* With the lock; where it belongs among the others. */
static clv_status add_version(model *m, const version_name *is, known_version **out)
{
	uint32_t k = 0;
	TRY(vec_push(&m->versions, (known_version){0}));
	while (k + 1 < m->versions.n && m->versions.at[k].is.number > is->number)
		k++;
	memmove(m->versions.at + k + 1, m->versions.at + k, (m->versions.n - 1 - k) * sizeof *m->versions.at);
	m->versions.at[k] = (known_version){.is = *is};
	*out = &m->versions.at[k];
	return CLV_OK;
}

/* What cannot be loaded (now is NULL) does not take the place of what runs. Takes `now`. */
static clv_status put_in_place(models *l, uint32_t i, const version_name *is, served *now, const stamp *when,
                               const char *reason)
{
	served_list old = {0};
	pthread_mutex_lock(&l->lock);
	model *m = &l->all.at[i];
	known_version *v = find_version(m, is->text);
	served *before = NULL;
	clv_status st = v ? CLV_OK : add_version(m, is, &v);
	if (st == CLV_OK) {
		v->stamp = *when;
		set_text(&v->reason, reason);
		set_text(&m->reason, NULL);
	}
	if (st == CLV_OK && now) {
		before = v->now;
		v->now = now;
		take_cuts(m, is->text, &old);
	}
	if (before) {
		tally_move(before, now);
		before->heir = served_ref(now);
	}
	pthread_mutex_unlock(&l->lock);
	served_free(st == CLV_OK ? before : now);
	free_list(&old);
	return st;
}

static bool is_among(const version_names *all, const char *text)
{
	for (uint32_t i = 0; i < all->n; i++)
		if (strcmp(all->at[i].text, text) == 0)
			return true;
	return false;
}

/* With the lock. */
static bool all_run(model *m, const version_names *wanted)
{
	bool all = true;
	for (uint32_t i = 0; i < wanted->n; i++)
		all &= running(m, wanted->at[i].text) != NULL;
	return all;
}

static bool has_others(const model *m, const version_names *wanted)
{
	for (uint32_t k = 0; k < m->versions.n; k++)
		if (!is_among(wanted, m->versions.at[k].is.text))
			return true;
	return false;
}

/* Versions that are not wanted go once all that are wanted run. wanted NULL: all go, at once. */
static void drop_versions(models *l, uint32_t i, const version_names *wanted)
{
	served_list old = {0};
	uint32_t kept = 0;
	pthread_mutex_lock(&l->lock);
	model *m = &l->all.at[i];
	bool now = !wanted || all_run(m, wanted);
	for (uint32_t k = 0; k < m->versions.n; k++) {
		known_version v = m->versions.at[k];
		if (!now || (wanted && is_among(wanted, v.is.text))) {
			m->versions.at[kept++] = v;
			continue;
		}
		take_cuts(m, v.is.text, &old);
		if (v.now && vec_push(&old, v.now) != CLV_OK)
			served_free(v.now);
		mem_free(v.reason);
	}
	m->versions.n = kept;
	pthread_mutex_unlock(&l->lock);
	free_list(&old);
}

static clv_status load_version(server *s, uint32_t i, const model_config *c, const version_name *v, bool anew)
{
	models *l = s->models;
	model *m = &l->all.at[i];
	char *path = NULL;
	stamp when = {0};
	served *now = NULL;
	known_version *known = find_version(m, v->text);
	clv_status st = look_at(m, c, v, &path, &when);
	if (st == CLV_OK && !anew && known && memcmp(&when, &known->stamp, sizeof when) == 0) {
		mem_free(path);
		return CLV_OK;
	}
	if (st == CLV_OK)
		st = open_version(s, m, c, v, path, &now);
	mem_free(path);
	if (st == CLV_OK)
		server_say(s, "model %s version %s is ready (%s%s)", now->name, now->version, clv_runtime_engine(now->runtime),
		           clv_runtime_sandboxed(now->runtime) ? ", in a sandbox" : "");
	else
		server_say(s, "model %s version %s cannot be loaded: %s", m->name, v->text, status_message());
	clv_status put = put_in_place(l, i, v, now, &when, st == CLV_OK ? NULL : clv_status_name(st));
	return st == CLV_OK ? put : st;
}

/* anew: also what did not change. The first failure counts; the other versions are loaded nonetheless. */
static clv_status load(server *s, uint32_t i, bool anew)
{
	models *l = s->models;
	model *m = &l->all.at[i];
	model_config c;
	version_names wanted = {0};
	clv_status st = read_config(m, &c, &wanted);
	if (st != CLV_OK) {
		server_say(s, "model %s cannot be loaded: %s", m->name, status_message());
		pthread_mutex_lock(&l->lock);
		set_text(&m->reason, clv_status_name(st));
		pthread_mutex_unlock(&l->lock);
	} else if (c.unused.n) {
		server_say(s, "model %s: these fields of config.pbtxt change nothing here: %.*s", m->name, (int)c.unused.n,
		           c.unused.at);
	}
	clv_status first = st;
	for (uint32_t k = 0; st == CLV_OK && k < wanted.n; k++) {
		clv_status one = load_version(s, i, &c, &wanted.at[k], anew);
		first = first == CLV_OK ? one : first;
	}
	if (st == CLV_OK)
		drop_versions(l, i, &wanted);
	vec_free(&wanted);
	model_config_free(&c);
	return first;
}

static bool version_changed(model *m, const model_config *c, const version_name *v)
{
	char *path;
	stamp when;
	const known_version *known = find_version(m, v->text);
	if (look_at(m, c, v, &path, &when) != CLV_OK)
		return false; /* it is gone, or being written: what runs goes on */
	mem_free(path);
	return !known || memcmp(&when, &known->stamp, sizeof when) != 0;
}

static bool changed(model *m)
{
	model_config c;
	version_names wanted = {0};
	bool good = read_config(m, &c, &wanted) == CLV_OK, differs = good && has_others(m, &wanted) && all_run(m, &wanted);
	for (uint32_t k = 0; good && k < wanted.n; k++)
		differs |= version_changed(m, &c, &wanted.at[k]);
	vec_free(&wanted);
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
	if (!n)
		return fail(CLV_E_INVALID, "\"%s\" names no model", text);
	if (find(s->models, name, n))
		return fail(CLV_E_INVALID, "there are two models of the name \"%.*s\"; NAME=FILE gives one another", (int)n,
		            name);
	return add_model(s->models, name, n, path, false, true);
}

static clv_status load_all(server *s)
{
	for (uint32_t i = 0; i < s->models->all.n; i++) {
		bool named = !s->o.repository || i < s->o.nmodels;
		clv_status st = load(s, i, true);
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
		drop_versions(l, i, NULL);
		vec_free(&m->versions);
		vec_free(&m->cuts);
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

/* version NULL: the newest. */
static served *find_now(models *l, const char *name, size_t n, const char *version)
{
	pthread_mutex_lock(&l->lock);
	model *m = find(l, name, n);
	served *found = m ? served_ref(running(m, version)) : NULL;
	pthread_mutex_unlock(&l->lock);
	return found;
}

void models_versions(server *s, const char *name, void (*each)(void *ctx, const char *version), void *ctx)
{
	models *l = s->models;
	pthread_mutex_lock(&l->lock);
	model *m = find(l, name, strcspn(name, "@"));
	for (uint32_t k = 0; m && k < m->versions.n; k++)
		if (m->versions.at[k].now)
			each(ctx, m->versions.at[k].is.text);
	pthread_mutex_unlock(&l->lock);
}

static void add_text(void *ctx, const char *version)
{
	strbuf *b = ctx;
	strbuf_printf(b, "%s%s", b->n ? ", " : "", version);
}

static clv_status unknown(server *s, const char *name, const char *version)
{
	strbuf others = STRBUF_INIT;
	if (!version)
		return fail(CLV_E_NOT_FOUND, "Request for unknown model: '%.128s' is not found", name);
	models_versions(s, name, add_text, &others);
	int n = others.failed || others.n > 256 ? 0 : (int)others.n;
	clv_status st = fail(CLV_E_NOT_FOUND, "Request for unknown model: '%.128s' version %.24s is not found%s%.*s", name,
	                     version, n ? "; served are: " : "", n, n ? others.at : "");
	strbuf_free(&others);
	return st;
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
		st = load(s, (uint32_t)(m - l->all.at), true);
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
		drop_versions(l, (uint32_t)(m - l->all.at), NULL);
	}
	pthread_mutex_unlock(&l->loading);
	return m ? CLV_OK : unknown(s, name, NULL);
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
			(void)load(s, i, all || i >= before);
	pthread_mutex_unlock(&l->loading);
}

/* ---- finding -------------------------------------------------------------------------------------------------------------------------- */

bool models_is_quick(const char *name)
{
	return !strchr(name, '@');
}

static bool is_cut_of(const served *cut, const served *of, const char *name)
{
	return strcmp(cut->name, name) == 0 && strcmp(cut->version, of->version) == 0;
}

static served *find_cut(models *l, const served *of, const char *name)
{
	served *found = NULL;
	pthread_mutex_lock(&l->lock);
	model *m = find(l, name, strcspn(name, "@"));
	for (uint32_t k = 0; m && is_running(m, of) && k < m->cuts.n && !found; k++)
		if (is_cut_of(m->cuts.at[k], of, name))
			found = served_ref(m->cuts.at[k]);
	pthread_mutex_unlock(&l->lock);
	return found;
}

/* The oldest goes where there are many. */
static clv_status keep_cut(models *l, const served *of, served *cut)
{
	clv_status st = CLV_OK;
	served *old = NULL;
	pthread_mutex_lock(&l->lock);
	model *m = find(l, of->name, strlen(of->name));
	if (m && is_running(m, of)) {
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
		return unknown(s, name, version);
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
		ready &= !l->all.at[i].wanted || running(&l->all.at[i], NULL);
	pthread_mutex_unlock(&l->lock);
	return ready;
}

static clv_status index_versions(const model *m, bool ready_only, index_fn each, void *ctx)
{
	for (uint32_t k = 0; k < m->versions.n; k++) {
		const known_version *v = &m->versions.at[k];
		if (!ready_only || v->now)
			TRY(each(ctx, m->name, v->is.text, v->now != NULL, v->reason ? v->reason : ""));
	}
	if (m->versions.n || ready_only)
		return CLV_OK;
	return each(ctx, m->name, "", false, m->reason ? m->reason : "unloaded");
}

clv_status models_index(server *s, bool ready_only, index_fn each, void *ctx)
{
	models *l = s->models;
	clv_status st = CLV_OK;
	pthread_mutex_lock(&l->lock);
	for (uint32_t i = 0; i < l->all.n && st == CLV_OK; i++)
		st = index_versions(&l->all.at[i], ready_only, each, ctx);
	pthread_mutex_unlock(&l->lock);
	return st;
}

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
		for (uint32_t k = 0; k < m->versions.n && st == CLV_OK; k++)
			st = collect_one(out, m->versions.at[k].now, name, version);
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
	return st == CLV_OK && name && none ? unknown(s, name, version) : st;
}
