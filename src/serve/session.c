/* The sessions of a server, and their files. */
#include "serve/session.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/member.h"
#include "file/json.h"

#define SAID_KEY "cleave.session"
#define CHECK_KEY "cleave.session.check"
#define ENDING ".session"

enum { FILE_VERSION = 1 };

struct sessions {
	pthread_mutex_t lock;
	VEC(session *) all;
	bool stopping;
	int folder_lock; /* held while the server runs: two would write over each other */
};

static clv_status path_of(const server *s, const char *id, char **out)
{
	strbuf b = STRBUF_INIT;
	strbuf_printf(&b, "%s/%s" ENDING, s->o.state, id);
	return strbuf_take(&b, out);
}

void session_forget(session *s)
{
	clv_trainer_free(s->trainer);
	served_free(s->of);
	s->trainer = NULL;
	s->of = NULL;
	atomic_store(&s->held, false);
}

static void session_free(session *s)
{
	if (!s)
		return;
	session_forget(s);
	mem_free(s->model);
	mem_free(s);
}

static clv_status session_new(const char *id, const char *model, const char *owner, session **out)
{
	session *s = mem_alloc(sizeof *s);
	TRY_MEM(s);
	s->model = mem_strdup(model, strlen(model));
	if (!s->model) {
		session_free(s);
		return fail_nomem();
	}
	snprintf(s->id, sizeof s->id, "%s", id);
	snprintf(s->owner, sizeof s->owner, "%s", owner);
	s->used = clock_nanoseconds();
	*out = s;
	return CLV_OK;
}

/* ---- what a file says ------------------------------------------------------------------------------------------------------ */

static clv_status get_text(const json_t *from, const char *key, char *to, size_t room)
{
	const char *text;
	TRY(json_get_string(from, key, &text));
	if (strlen(text) >= room)
		return fail(CLV_E_PARSE, "its \"%s\" is too long", key);
	memcpy(to, text, strlen(text) + 1);
	return CLV_OK;
}

static clv_status get_count(const json_t *from, const char *key, uint64_t *out)
{
	int64_t n;
	TRY(json_get_int(from, key, &n));
	*out = (uint64_t)n;
	return n >= 0 ? CLV_OK : fail(CLV_E_PARSE, "its \"%s\" is below 0", key);
}

static clv_status read_member(const json_t *from, session_member *m)
{
	const char *body;
	TRY(get_text(from, "name", m->name, sizeof m->name));
	TRY(get_text(from, "owner", m->owner, sizeof m->owner));
	TRY(get_count(from, "last", &m->last));
	TRY(get_count(from, "tied", &m->tied));
	TRY(json_get_string(from, "body", &body));
	return digest_parse(body, &m->body) ? CLV_OK : fail(CLV_E_PARSE, "its digest is none");
}

static clv_status read_facts(const json_t *said, session_facts *f)
{
	uint64_t accumulate;
	int64_t seed;
	const json_t *members;
	*f = (session_facts){0};
	TRY(json_get_bool(said, "shared", &f->shared));
	TRY(get_count(said, "accumulate", &accumulate));
	TRY(get_count(said, "steps", &f->steps));
	TRY(json_get_bool(said, "seeded", &f->has_seed));
	TRY(json_get_int(said, "seed", &seed));
	TRY(json_get_array(said, "members", &members));
	f->seed = (uint64_t)seed;
	f->accumulate = (uint32_t)accumulate;
	f->nmembers = (uint32_t)json_array_size(members);
	if (!accumulate || accumulate > UINT32_MAX || f->nmembers > SESSION_MEMBERS_MOST ||
	    (f->shared && accumulate > SESSION_MEMBERS_MOST))
		return fail(CLV_E_PARSE, "its numbers are out of range");
	for (uint32_t i = 0; i < f->nmembers; i++)
		TRY(read_member(json_array_get(members, i), &f->members[i]));
	return CLV_OK;
}

static void put_digest(strbuf *b, const char *key, digest d)
{
	char text[DIGEST_TEXT];
	digest_print(d, text);
	member_text(b, key, text);
}

static void put_facts(const session *s, const session_facts *f, strbuf *b)
{
	member_text(b, "id", s->id);
	member_text(b, "model", s->model);
	member_text(b, "owner", s->owner);
	member_bool(b, "shared", f->shared);
	member_int(b, "accumulate", f->accumulate);
	member_int(b, "steps", (int64_t)f->steps);
	member_bool(b, "seeded", f->has_seed);
	member_int(b, "seed", (int64_t)f->seed);
	member_open(b, "members", '[');
	for (uint32_t i = 0; i < f->nmembers; i++) {
		const session_member *m = &f->members[i];
		member_open(b, NULL, '{');
		member_text(b, "name", m->name);
		member_text(b, "owner", m->owner);
		member_int(b, "last", (int64_t)m->last);
		member_int(b, "tied", (int64_t)m->tied);
		put_digest(b, "body", m->body);
		strbuf_putc(b, '}');
	}
	strbuf_putc(b, ']');
}

/* ---- files ------------------------------------------------------------------------------------------------------------------- */

void session_file_close(session_file *f)
{
	json_decref(f->said);
	st_free(f->parts);
	file_unmap(&f->map);
	*f = (session_file){0};
}

static clv_status read_said(session_file *f)
{
	int64_t version;
	size_t n, checked;
	TRY(st_parse(f->map.at, f->map.n, &f->parts));
	const char *text = st_metadata(f->parts, SAID_KEY, &n), *check = st_metadata(f->parts, CHECK_KEY, &checked);
	char want[DIGEST_TEXT];
	if (!text || !check)
		return fail(CLV_E_PARSE, "it is no session");
	digest_print(digest_of(text, n), want);
	if (checked != strlen(want) || memcmp(check, want, checked) != 0)
		return fail(CLV_E_PARSE, "it is damaged");
	TRY(json_read(text, n, "its description", &f->said));
	TRY(json_get_int(f->said, "version", &version));
	return version == FILE_VERSION ? CLV_OK : fail(CLV_E_UNSUPPORTED, "it is of another version of Cleave");
}

static clv_status open_at(const char *path, session_file *out)
{
	*out = (session_file){0};
	TRY(file_map(path, false, &out->map));
	clv_status st = read_said(out);
	if (st != CLV_OK)
		session_file_close(out);
	return st;
}

clv_status session_file_open(exchange *x, const session *s, session_file *out)
{
	char *path;
	TRY(path_of(x->s, s->id, &path));
	clv_status st = open_at(path, out);
	mem_free(path);
	return st == CLV_OK || st == CLV_E_NOMEM ? st : fail_more(CLV_E_IO, "the file of session %s", s->id);
}

clv_status session_part(const session_file *f, const char *name, const st_entry **out)
{
	const json_t *digests;
	const char *text;
	digest want;
	uint32_t i = st_find(f->parts, name);
	if (i == NONE)
		return fail(CLV_E_NOT_FOUND, "the session has no %s", name);
	const st_entry *e = st_at(f->parts, i);
	TRY(json_get_object(f->said, "digests", (json_t **)&digests));
	TRY(json_get_string(digests, name, &text));
	if (!digest_parse(text, &want) || !digest_equal(want, digest_of(e->data, e->nbytes)))
		return fail(CLV_E_IO, "the file of the session is damaged: %s is not what was written", name);
	*out = e;
	return CLV_OK;
}

static clv_status describe(const session *s, const session_facts *next, const session_bytes *parts, uint32_t n,
                           char **out)
{
	strbuf b = STRBUF_INIT;
	member_open(&b, NULL, '{');
	member_int(&b, "version", FILE_VERSION);
	put_facts(s, next, &b);
	member_open(&b, "digests", '{');
	for (uint32_t i = 0; i < n; i++)
		put_digest(&b, parts[i].name, digest_of(parts[i].at, parts[i].n));
	strbuf_puts(&b, "}}");
	return strbuf_take(&b, out);
}

static clv_status write_parts(const char *path, const char *text, const st_entry *entries, uint32_t n, size_t most,
                              size_t *bytes)
{
	char check[DIGEST_TEXT];
	st_image image;
	digest_print(digest_of(text, strlen(text)), check);
	st_text texts[] = {{SAID_KEY, text, strlen(text)}, {CHECK_KEY, check, strlen(check)}};
	TRY(st_layout(entries, n, texts, 2, &image));
	clv_status st = image.total > most
	                    ? fail(CLV_E_LIMIT, "the session would take %zu bytes, one may have %zu", image.total, most)
	                    : st_save(&image, path);
	*bytes = image.total;
	st_image_free(&image);
	return st;
}

static clv_status write_file(const server *sv, const session *s, const session_facts *next, const session_bytes *parts,
                             uint32_t n, size_t *bytes)
{
	char *path = NULL, *text = NULL;
	st_entry *entries = mem_alloc((n + 1) * sizeof *entries);
	int64_t *sizes = mem_alloc((n + 1) * sizeof *sizes);
	clv_status st = entries && sizes ? path_of(sv, s->id, &path) : fail_nomem();
	for (uint32_t i = 0; st == CLV_OK && i < n; i++) {
		sizes[i] = (int64_t)parts[i].n;
		entries[i] = (st_entry){.name = parts[i].name,
		                        .dtype = DT_U8,
		                        .ndim = 1,
		                        .shape = &sizes[i],
		                        .data = parts[i].at,
		                        .nbytes = parts[i].n};
	}
	if (st == CLV_OK)
		st = describe(s, next, parts, n, &text);
	if (st == CLV_OK)
		st = write_parts(path, text, entries, n, (size_t)sv->o.max_session, bytes);
	mem_free(text);
	mem_free(path);
	mem_free(sizes);
	mem_free(entries);
	return st;
}

static void answer_unwritten(exchange *x, const session *s, clv_status st)
{
	if (st == CLV_E_LIMIT) {
		answer_error(x, 413, "%s", status_message());
		return;
	}
	server_say(x->s, "%s: session %s cannot be written: %s", x->id, s->id, status_message());
	answer_error(x, 503, "the server cannot write the state of the session now: nothing was changed, send it again");
}

clv_status session_write(exchange *x, session *s, const session_facts *next, const session_bytes *parts, uint32_t n)
{
	size_t bytes;
	clv_status st = write_file(x->s, s, next, parts, n, &bytes);
	if (st != CLV_OK) {
		answer_unwritten(x, s, st);
		session_forget(s);
		return st;
	}
	pthread_mutex_lock(&x->s->sessions->lock);
	s->facts = *next;
	s->bytes = bytes;
	pthread_mutex_unlock(&x->s->sessions->lock);
	return CLV_OK;
}

/* ---- trainers ------------------------------------------------------------------------------------------------------------------ */

static clv_status restore(exchange *x, session *s)
{
	session_file f;
	const st_entry *state;
	TRY(session_file_open(x, s, &f));
	clv_status st = session_part(&f, "trainer", &state);
	if (st == CLV_OK)
		st = clv_trainer_restore(s->trainer, state->data, state->nbytes);
	session_file_close(&f);
	return st;
}

clv_status session_rewind(exchange *x, session *s)
{
	clv_status st = s->trainer ? restore(x, s) : CLV_OK;
	if (st != CLV_OK)
		session_forget(s);
	return st;
}

typedef struct idle_trainer {
	clv_trainer *trainer;
	served *of;
} idle_trainer;

/* Of the sessions that nobody works on, the one with a trainer that was not used for longest. NULL: there is none. */
static session *find_idle(const sessions *l)
{
	session *found = NULL;
	for (uint32_t i = 0; i < l->all.n; i++) {
		session *s = l->all.at[i];
		if (!s->busy && s->trainer && (!found || s->used < found->used))
			found = s;
	}
	return found;
}

/* One alone may be as large as it is: the next request is most likely its own. */
static bool is_too_much(const server *sv, const sessions *l, size_t more)
{
	uint64_t bytes = more;
	uint32_t held = more > 0;
	for (uint32_t i = 0; i < l->all.n; i++) {
		if (!atomic_load(&l->all.at[i]->held))
			continue;
		bytes += l->all.at[i]->bytes;
		held++;
	}
	return held > 1 && bytes > (uint64_t)sv->o.session_memory;
}

static bool take_idle(server *sv, size_t more, idle_trainer *out)
{
	sessions *l = sv->sessions;
	pthread_mutex_lock(&l->lock);
	session *s = is_too_much(sv, l, more) ? find_idle(l) : NULL;
	if (s) {
		*out = (idle_trainer){s->trainer, s->of};
		s->trainer = NULL;
		s->of = NULL;
		atomic_store(&s->held, false);
	}
	pthread_mutex_unlock(&l->lock);
	return s;
}

/* For a trainer of so many bytes. What goes is in its file, and is made again of that when it is asked for. */
static void make_room(server *sv, size_t more)
{
	idle_trainer old;
	while (take_idle(sv, more, &old)) {
		clv_trainer_free(old.trainer);
		served_free(old.of);
	}
}

clv_status session_trainer(exchange *x, session *s, clv_trainer **out)
{
	clv_trainer_options o = models_trainer_options(x->s);
	if (s->of != x->served)
		session_forget(s);
	if (!s->trainer) {
		make_room(x->s, s->bytes);
		o.has_seed = s->facts.has_seed;
		o.seed = s->facts.seed;
		TRY(clv_trainer_create(x->served->artifact, &o, &s->trainer));
		s->of = served_ref(x->served);
		atomic_store(&s->held, true);
		if (s->bytes)
			TRY(session_rewind(x, s));
	}
	*out = s->trainer;
	return CLV_OK;
}

bool session_begin(exchange *x, session *s)
{
	sessions *l = x->s->sessions;
	pthread_mutex_lock(&l->lock);
	s->stepping = !l->stopping;
	pthread_mutex_unlock(&l->lock);
	if (!s->stepping)
		answer_error(x, 503, "the server stops: nothing was changed, send the step again");
	return s->stepping;
}

void session_end(exchange *x, session *s)
{
	sessions *l = x->s->sessions;
	pthread_mutex_lock(&l->lock);
	s->stepping = false;
	pthread_mutex_unlock(&l->lock);
}

void sessions_stop(server *s)
{
	sessions *l = s->sessions;
	if (!l)
		return;
	pthread_mutex_lock(&l->lock);
	l->stopping = true;
	for (uint32_t i = 0; i < l->all.n; i++)
		if (l->all.at[i]->stepping) {
			server_say(s, "a step of session %s is cut short: it was not made", l->all.at[i]->id);
			clv_trainer_cancel(l->all.at[i]->trainer);
		}
	pthread_mutex_unlock(&l->lock);
}

/* ---- the list -------------------------------------------------------------------------------------------------------------------- */

static uint32_t find(const sessions *l, const char *id)
{
	for (uint32_t i = 0; i < l->all.n; i++)
		if (strcmp(l->all.at[i]->id, id) == 0)
			return i;
	return NONE;
}

static bool is_of(const session *s, const char *model)
{
	return strcmp(s->model, model) == 0;
}

/* NULL: the model has none of that number. */
static session *find_mine(const exchange *x, const char *id)
{
	const sessions *l = x->s->sessions;
	uint32_t i = find(l, id);
	return i != NONE && is_of(l->all.at[i], x->model) ? l->all.at[i] : NULL;
}

static session *take_locked(exchange *x, session *s)
{
	if (!s)
		answer_error(x, 404, "model '%s' has no session of that number: it was ended, or not used for too long",
		             x->model);
	else if (!s->facts.shared && strcmp(s->owner, x->owner) != 0)
		answer_error(x, 403, "the session belongs to another token");
	else if (s->busy)
		answer_error(x, 503, "a request of this session is being worked on; try again when it has its answer");
	else
		s->busy = true;
	return x->out.status ? NULL : s;
}

session *session_take(exchange *x, const char *id)
{
	sessions *l = x->s->sessions;
	pthread_mutex_lock(&l->lock);
	session *s = take_locked(x, find_mine(x, id));
	pthread_mutex_unlock(&l->lock);
	return s;
}

void session_give_back(session *s, exchange *x)
{
	sessions *l = x->s->sessions;
	pthread_mutex_lock(&l->lock);
	s->busy = false;
	s->used = clock_nanoseconds();
	pthread_mutex_unlock(&l->lock);
	make_room(x->s, 0);
}

/* One that could not be read at the start, for instance: a new session of that name would replace it. */
static bool has_file(const server *s, const char *id)
{
	char *path;
	if (path_of(s, id, &path) != CLV_OK)
		return true;
	bool there = access(path, F_OK) == 0 || errno != ENOENT;
	mem_free(path);
	return there;
}

static session *add_locked(exchange *x, const char *id, const session_facts *facts)
{
	sessions *l = x->s->sessions;
	session *s = NULL;
	uint32_t there = find(l, id);
	if (there != NONE && is_of(l->all.at[there], x->model)) /* another member opened it just now */
		answer_error(x, 503, "the session is being opened; try again");
	else if (there != NONE)
		answer_error(x, 409, "there is another session of that number");
	else if (has_file(x->s, id))
		answer_error(x, 409, "there is a file of a session of that number, which the server could not read");
	else if (l->all.n >= x->s->o.max_sessions)
		answer_error(x, 429, "there are %u sessions already, as many as the server has", l->all.n);
	else if (session_new(id, x->model, x->owner, &s) != CLV_OK || vec_push(&l->all, s) != CLV_OK) {
		session_free(s);
		answer_status(x, CLV_E_NOMEM);
	}
	if (x->out.status)
		return NULL;
	s->facts = *facts;
	s->busy = true;
	return s;
}

session *session_open(exchange *x, const char *id, const session_facts *facts, bool *made)
{
	sessions *l = x->s->sessions;
	sessions_expire(x->s);
	pthread_mutex_lock(&l->lock);
	session *there = find_mine(x, id), *s = there ? take_locked(x, there) : add_locked(x, id, facts);
	*made = s && !there;
	pthread_mutex_unlock(&l->lock);
	return s;
}

static void remove_file(server *s, const char *id)
{
	char *path;
	if (path_of(s, id, &path) != CLV_OK)
		return;
	if (unlink(path) != 0 && errno != ENOENT)
		server_say(s, "session %s: its file cannot be removed: %s", id, strerror(errno));
	mem_free(path);
	int folder = open(s->o.state, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder >= 0) { /* that it ended is on disk before the answer leaves, too */
		(void)fsync(folder);
		close(folder);
	}
}

/* The name is free once the file is gone: a new session of it must not lose its own. */
void session_drop(server *sv, session *s)
{
	sessions *l = sv->sessions;
	remove_file(sv, s->id);
	pthread_mutex_lock(&l->lock);
	uint32_t i = find(l, s->id);
	memmove(l->all.at + i, l->all.at + i + 1, (--l->all.n - i) * sizeof *l->all.at);
	pthread_mutex_unlock(&l->lock);
	session_free(s);
}

clv_status session_look(exchange *x, const char *id, void (*look)(void *, const session *), void *ctx)
{
	sessions *l = x->s->sessions;
	pthread_mutex_lock(&l->lock);
	const session *there = find_mine(x, id);
	if (there)
		look(ctx, there);
	pthread_mutex_unlock(&l->lock);
	return there ? CLV_OK : fail(CLV_E_NOT_FOUND, "model '%s' has no session of that number", x->model);
}

uint32_t sessions_count(server *s, uint32_t *held)
{
	sessions *l = s->sessions;
	*held = 0;
	if (!l)
		return 0;
	pthread_mutex_lock(&l->lock);
	uint32_t n = l->all.n;
	for (uint32_t i = 0; i < n; i++)
		*held += atomic_load(&l->all.at[i]->held);
	pthread_mutex_unlock(&l->lock);
	return n;
}

static bool is_old(const server *sv, const session *s)
{
	return !s->busy && sv->o.session_idle > 0 && (double)(clock_nanoseconds() - s->used) > sv->o.session_idle * 1e9;
}

/* Busy while its file goes, so that nobody takes it. NULL: none is old. */
static session *take_old(server *sv)
{
	sessions *l = sv->sessions;
	session *found = NULL;
	pthread_mutex_lock(&l->lock);
	for (uint32_t i = 0; i < l->all.n && !found; i++)
		found = is_old(sv, l->all.at[i]) ? l->all.at[i] : NULL;
	if (found)
		found->busy = true;
	pthread_mutex_unlock(&l->lock);
	return found;
}

void sessions_expire(server *sv)
{
	sessions *l = sv->sessions;
	session *s;
	while (l && (s = take_old(sv))) {
		server_say(sv, "session %s of model %s ends: nobody used it for %g s", s->id, s->model, sv->o.session_idle);
		session_drop(sv, s);
	}
}

bool sessions_any_old(server *sv)
{
	sessions *l = sv->sessions;
	bool any = false;
	if (!l)
		return false;
	pthread_mutex_lock(&l->lock);
	for (uint32_t i = 0; i < l->all.n && !any; i++)
		any = is_old(sv, l->all.at[i]);
	pthread_mutex_unlock(&l->lock);
	return any;
}

/* ---- taking up what is there ------------------------------------------------------------------------------------------------------- */

/* Nanoseconds since the file was written, by the only clock that goes on while no server runs. That may have been set, or the server
   may have been off: whose session is old has an hour to come back, or half the time that it may be idle. */
static int64_t age_of(const server *sv, const struct stat *info)
{
	double seconds = (double)wall_milliseconds() / 1e3 - (double)info->st_mtim.tv_sec, idle = sv->o.session_idle;
	double most = idle < 7200 ? idle / 2 : idle - 3600;
	return (int64_t)((seconds < 0 ? 0 : seconds < most ? seconds : most) * 1e9);
}

static clv_status take_up(const server *sv, const char *id, const char *path, session_file *f, session **out)
{
	const char *said_id, *model, *owner;
	struct stat info;
	TRY(open_at(path, f));
	TRY(json_get_string(f->said, "id", &said_id));
	TRY(json_get_string(f->said, "model", &model));
	TRY(json_get_string(f->said, "owner", &owner));
	if (strcmp(said_id, id) != 0 || strlen(owner) >= OWNER_TEXT)
		return fail(CLV_E_PARSE, "it is the file of another session");
	TRY(session_new(id, model, owner, out));
	(*out)->bytes = f->map.n;
	if (stat(path, &info) == 0)
		(*out)->used -= age_of(sv, &info);
	return read_facts(f->said, &(*out)->facts);
}

static clv_status take_up_one(server *sv, const char *id)
{
	session_file f = {0};
	session *s = NULL;
	char *path;
	TRY(path_of(sv, id, &path));
	clv_status st = take_up(sv, id, path, &f, &s);
	session_file_close(&f);
	mem_free(path);
	if (st == CLV_OK)
		st = vec_push(&sv->sessions->all, s);
	if (st == CLV_OK)
		return CLV_OK;
	session_free(s);
	if (st == CLV_E_NOMEM)
		return st;
	server_say(sv, "session %s cannot be taken up, its file stays: %s", id, status_message());
	return CLV_OK;
}

/* "ID.session.0.tmp": a server that was killed was writing it. */
static bool is_unfinished(const char *name)
{
	size_t n = strlen(name);
	return strstr(name, ENDING ".") && n > 4 && strcmp(name + n - 4, ".tmp") == 0;
}

static clv_status take_up_all(server *sv, DIR *d)
{
	struct dirent *e;
	while ((e = readdir(d))) {
		size_t n = strlen(e->d_name), k = strlen(ENDING);
		char id[SESSION_NAME_MOST + 1];
		if (is_unfinished(e->d_name))
			(void)unlinkat(dirfd(d), e->d_name, 0);
		if (n <= k || n - k > SESSION_NAME_MOST || strcmp(e->d_name + n - k, ENDING) != 0)
			continue;
		memcpy(id, e->d_name, n - k);
		id[n - k] = '\0';
		if (session_is_name(id))
			TRY(take_up_one(sv, id));
	}
	return CLV_OK;
}

static clv_status lock_folder(server *sv)
{
	strbuf b = STRBUF_INIT;
	char *path;
	if (mkdir(sv->o.state, 0700) != 0 && errno != EEXIST)
		return fail_io("make the folder", sv->o.state);
	strbuf_printf(&b, "%s/lock", sv->o.state);
	TRY(strbuf_take(&b, &path));
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	clv_status st = fd < 0 ? fail_io("open", path) : CLV_OK;
	if (st == CLV_OK && flock(fd, LOCK_EX | LOCK_NB) != 0)
		st = fail(CLV_E_IO, "%s is the state of another server that runs", sv->o.state);
	mem_free(path);
	sv->sessions->folder_lock = fd;
	return st;
}

clv_status sessions_open(server *sv)
{
	if (!sv->o.state)
		return CLV_OK;
	sessions *l = mem_alloc(sizeof *l);
	TRY_MEM(l);
	sv->sessions = l;
	l->folder_lock = -1;
	pthread_mutex_init(&l->lock, NULL);
	if (sv->o.check)
		return CLV_OK;
	TRY(lock_folder(sv));
	DIR *d = opendir(sv->o.state);
	if (!d)
		return fail_io("open", sv->o.state);
	clv_status st = take_up_all(sv, d);
	closedir(d);
	if (st == CLV_OK && l->all.n)
		server_say(sv, "%u sessions go on", l->all.n);
	return st;
}

void sessions_close(server *sv)
{
	sessions *l = sv->sessions;
	if (!l)
		return;
	for (uint32_t i = 0; i < l->all.n; i++)
		session_free(l->all.at[i]);
	vec_free(&l->all);
	if (l->folder_lock >= 0)
		close(l->folder_lock);
	pthread_mutex_destroy(&l->lock);
	mem_free(l);
	sv->sessions = NULL;
}
