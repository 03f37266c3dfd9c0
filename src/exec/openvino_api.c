/* OpenVINO's C library: where it is, its functions by name, one core for the process.
 *
 * Looked for in $CLEAVE_OPENVINO (the library, or a folder with it) and nowhere else if that is set; in the Python
 * package, if Python said where that is; where the system's loader looks. The library stays open, as its threads do. */
#include "exec/openvino_api.h"

#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *package;   /* folder of the Python package */
static ov_api *the_one; /* set once it is complete */

#define HOW "pip install openvino; programs without Python find it by CLEAVE_OPENVINO=/folder/with/libopenvino_c.so"

/* The newest of folder/inside/libopenvino_c.so*; names of versions sort. */
static void *open_inside(const char *folder, const char *inside)
{
	strbuf b = STRBUF_INIT;
	char *pattern;
	glob_t found;
	void *library = NULL;
	strbuf_printf(&b, "%s%s/libopenvino_c.so*", folder, inside);
	if (strbuf_take(&b, &pattern) != CLV_OK)
		return NULL;
	if (glob(pattern, GLOB_NOESCAPE, NULL, &found) == 0) {
		for (size_t i = found.gl_pathc; i-- > 0 && !library;)
			library = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
		globfree(&found);
	}
	mem_free(pattern);
	return library;
}

static void *open_folder(const char *folder)
{
	static const char *const inside[] = {
		"", "/libs", "/lib", "/openvino/libs", "/runtime/lib/intel64", "/runtime/lib/aarch64"};
	void *library = NULL;
	for (size_t i = 0; i < sizeof inside / sizeof *inside && !library; i++)
		library = open_inside(folder, inside[i]);
	return library;
}

/* Packages of distributions may have the name with a version alone: .so.2640 is 2026.4. */
static void *open_by_loader(void)
{
	void *library = dlopen("libopenvino_c.so", RTLD_NOW | RTLD_LOCAL);
	for (int year = 32; year >= 25 && !library; year--)
		for (int release = 5; release >= 0 && !library; release--) {
			char name[40];
			snprintf(name, sizeof name, "libopenvino_c.so.%d%d0", year, release);
			library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
		}
	return library;
}

static clv_status open_named(const char *path, void **out)
{
	struct stat s;
	bool folder = stat(path, &s) == 0 && S_ISDIR(s.st_mode);
	*out = folder ? open_folder(path) : dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (*out)
		return CLV_OK;
	const char *why = folder ? NULL : dlerror();
	return fail(CLV_E_NOT_FOUND, "there is no OpenVINO at CLEAVE_OPENVINO=%.300s%s%.300s: %s", path, why ? ": " : "",
	            why ? why : "", HOW);
}

static clv_status open_library(void **out)
{
	const char *path = getenv("CLEAVE_OPENVINO");
	if (path && *path)
		return open_named(path, out);
	*out = package ? open_folder(package) : NULL;
	if (!*out)
		*out = open_by_loader();
	return *out ? CLV_OK : fail(CLV_E_NOT_FOUND, "OpenVINO is not installed: %s", HOW);
}

static clv_status find_functions(void *library, ov_api *ov)
{
	const char *missing = NULL;
#define X(result, name, args)                                                                                          \
	*(void **)&ov->name = dlsym(library, #name);                                                                       \
	if (!ov->name)                                                                                                     \
		missing = #name;
	OV_LIST(X)
#undef X
	return missing ? fail(CLV_E_UNSUPPORTED, "this OpenVINO has no %s; 2025.0 or newer is needed", missing) : CLV_OK;
}

/* A message begins with places in OpenVINO's own source, a line each. */
static const char *past_places(const char *text)
{
	while (!strncmp(text, "Exception from ", 15) || !strncmp(text, "Check '", 7)) {
		const char *end = strchr(text, '\n');
		if (!end || !end[1])
			return text;
		text = end + 1;
	}
	return text;
}

clv_status openvino_fail(const ov_api *ov, const char *what)
{
	const char *all = ov->ov_get_last_err_msg();
	const char *text = past_places(all && *all ? all : "no reason is given");
	char line[400];
	size_t n = 0;
	for (; *text && n < sizeof line - 1; text++)
		line[n++] = *text == '\n' || *text == '\r' ? ' ' : *text;
	while (n && line[n - 1] == ' ')
		n--;
	line[n] = '\0';
	ov->ov_free(all);
	return fail(CLV_E_UNSUPPORTED, "OpenVINO could not %s: %s", what, line);
}

/* They changed between releases, their names did not: a model that has an input of each type is asked. */
static const struct {
	dtype d;
	const char *name, *port;
} type_names[] = {
	{DT_U8, "u8", "U8"},       {DT_I8, "i8", "I8"},          {DT_I16, "i16", "I16"},  {DT_I32, "i32", "I32"},
	{DT_I64, "i64", "I64"},    {DT_F16, "f16", "FP16"},      {DT_F32, "f32", "FP32"}, {DT_F64, "f64", "FP64"},
	{DT_BF16, "bf16", "BF16"}, {DT_BOOL, "boolean", "BOOL"}, {DT_U16, "u16", "U16"},  {DT_U32, "u32", "U32"},
	{DT_U64, "u64", "U64"},
};
enum { TYPES = sizeof type_names / sizeof *type_names };

static clv_status types_model(strbuf *b)
{
	strbuf_puts(b, "<?xml version=\"1.0\"?><net name=\"types\" version=\"11\"><layers>");
	for (int i = 0; i < TYPES; i++)
		strbuf_printf(
			b,
			"<layer id=\"%d\" name=\"p%d\" type=\"Parameter\" version=\"opset1\"><data shape=\"1\" "
			"element_type=\"%s\"/><output><port id=\"0\" precision=\"%s\"><dim>1</dim></port></output></layer>",
			i, i, type_names[i].name, type_names[i].port);
	for (int i = 0; i < TYPES; i++)
		strbuf_printf(b,
		              "<layer id=\"%d\" name=\"r%d\" type=\"Result\" version=\"opset1\"><input><port id=\"0\" "
		              "precision=\"%s\"><dim>1</dim>"
		              "</port></input></layer>",
		              TYPES + i, i, type_names[i].port);
	strbuf_puts(b, "</layers><edges>");
	for (int i = 0; i < TYPES; i++)
		strbuf_printf(b, "<edge from-layer=\"%d\" from-port=\"0\" to-layer=\"%d\" to-port=\"0\"/>", i, TYPES + i);
	strbuf_puts(b, "</edges></net>");
	return b->failed ? fail_nomem() : CLV_OK;
}

static clv_status ask_type(ov_api *ov, const ov_model *m, size_t i)
{
	ov_output_const_port *port = NULL;
	OV_TRY(ov, "name its types", ov->ov_model_const_input_by_index(m, i, &port));
	int st = ov->ov_port_get_element_type(port, &ov->types[type_names[i].d]);
	ov->ov_output_const_port_free(port);
	return st == 0 ? CLV_OK : openvino_fail(ov, "name its types");
}

static clv_status ask_types(ov_api *ov)
{
	strbuf b = STRBUF_INIT;
	ov_model *m = NULL;
	for (int d = 0; d < DT_COUNT; d++)
		ov->types[d] = OV_NO_TYPE;
	clv_status st = types_model(&b);
	if (st == CLV_OK && ov->ov_core_read_model_from_memory_buffer(ov->core, b.at, b.n, NULL, &m) != 0)
		st = openvino_fail(ov, "name its types");
	for (size_t i = 0; i < TYPES && st == CLV_OK; i++)
		st = ask_type(ov, m, i);
	if (m)
		ov->ov_model_free(m);
	strbuf_free(&b);
	return st;
}

static clv_status read_version(ov_api *ov)
{
	ov_version v = {NULL, NULL};
	OV_TRY(ov, "say its version", ov->ov_get_openvino_version(&v));
	snprintf(ov->version, sizeof ov->version, "%s", v.number ? v.number : "");
	ov->ov_version_free(&v);
	return CLV_OK;
}

static clv_status openvino_start(ov_api *ov)
{
	void *library;
	TRY(open_library(&library));
	TRY(find_functions(library, ov));
	TRY(read_version(ov));
	OV_TRY(ov, "start", ov->ov_core_create(&ov->core));
	clv_status st = ask_types(ov);
	if (st != CLV_OK)
		ov->ov_core_free(ov->core);
	return st;
}

clv_status openvino_api(const ov_api **out)
{
	clv_status st = CLV_OK;
	pthread_mutex_lock(&lock);
	if (!the_one) {
		ov_api *ov = mem_alloc(sizeof *ov);
		st = ov ? openvino_start(ov) : fail_nomem();
		if (st == CLV_OK)
			the_one = ov;
		else
			mem_free(ov);
	}
	*out = the_one;
	pthread_mutex_unlock(&lock);
	return st;
}

clv_status openvino_set_folder(const char *folder)
{
	char *copy = folder ? mem_strdup(folder, strlen(folder)) : NULL;
	if (folder && !copy)
		return fail_nomem();
	pthread_mutex_lock(&lock);
	mem_free(package);
	package = copy;
	pthread_mutex_unlock(&lock);
	return CLV_OK;
}
