/* `cleave capture`: checks the arguments, then becomes `python -m cleave capture`.
 * `cleave capture`: a model is code, so Python runs it. Here is what the command takes, for help, manual pages and
 * completion, and for a wrong word to be told at once instead of after torch was loaded; then the program becomes
 * `python -m cleave capture` with the same words (python/cleave/_command.py, whose options are these). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

typedef struct request {
	const char *target, *factory_args, *batch, *device, *weights, *boundary, *parts, *output, *text;
	text_list input, arg, dim, size, sizes, metadata;
	int64_t seed;
	const char *prove;
	bool train, eval, no_weights, verbose;
} request;

/* A word as a shell takes it. */
static void put_quoted(FILE *to, const char *word)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,%+@";
	if (*word && word[strspn(word, plain)] == '\0') {
		fputs(word, to);
		return;
	}
	fputc('\'', to);
	for (; *word; word++)
		fputs(*word == '\'' ? "'\\''" : (const char[]){*word, '\0'}, to);
	fputc('\'', to);
}

/* The command line that a person would type where Python is. Caller frees. */
static char *python_line(char **argv)
{
	char *line = NULL;
	size_t size;
	FILE *to = open_memstream(&line, &size);
	if (!to)
		return NULL;
	fputs("python3 -m cleave", to);
	for (char **word = argv + 1; *word; word++) {
		fputc(' ', to);
		put_quoted(to, *word);
	}
	fclose(to);
	return line;
}

char *find_python(void)
{
	static const char *const places[] = {
		"python3", "python", "../.venv/bin/python3", /* of a clone, whose build/ this program is in */
#ifdef CLEAVE_CLI_TORCH
		"../../bin/python3", /* of libexec/cleave */
#endif
	};
	const char *given = getenv("CLEAVE_PYTHON");
	char *path = given && *given ? grab_text(given, strlen(given)) : NULL;
	for (size_t i = 0; !path && i < sizeof places / sizeof *places; i++)
		path = program_at(places[i]);
	char *wheel = path ? NULL : program_at("../cleave/cleave-torch");
	if (wheel)
		path = program_at("../../../../bin/python3");
	free(wheel);
	return path;
}

static int explain(char **argv)
{
	char *line = python_line(argv);
	complain("capture runs the model, which needs Python with PyTorch and Cleave; none was found next to this program");
	hint("set CLEAVE_PYTHON to the Python that has Cleave, as in CLEAVE_PYTHON=.venv/bin/python3, or run `%s` there",
	     line ? line : "python3 -m cleave");
	free(line);
	return EXIT_FAILED;
}

int run_with_python(char **argv)
{
	char *path = find_python();
	if (!path)
		return explain(argv);
	size_t n = 0;
	while (argv[n])
		n++;
	char **words = grab((n + 3) * sizeof *words);
	words[0] = path;
	words[1] = "-m";
	words[2] = "cleave";
	memcpy(words + 3, argv + 1, n * sizeof *words);
	fflush(stdout);
	execvp(path, words); /* CLEAVE_PYTHON may be a name to look for, as python3.11 */
	complain("%s: cannot be started: %s", path, strerror(errno));
	hint("CLEAVE_PYTHON names the Python that has Cleave");
	free(words);
	free(path);
	return EXIT_FAILED;
}

static const option arguments[] = {
	ARG_TEXT("TARGET", target, "package.module:factory, file.py:factory, or an exported program, file.pt2"),
	OPTION_END,
};

static const option options[] = {
	OPT_FILE("output", 'o', "FILE", output,
             "the file to write, model.clv; with --boundary also a folder, for prefix.clv and suffix.clv"),
	OPT_FILE("text", 0, "FILE", text, "write the plan's text here; - is standard output"),
	OPT_FLAG("verbose", 'v', verbose, "report progress, and where errors come from"),
	OPT_GROUP("model"),
	OPT_TEXTS("arg", 0, "NAME=VALUE", arg, "keyword argument of the factory, as JSON or plain text; may be repeated"),
	OPT_TEXT("factory-args", 0, "JSON", factory_args, "all of them: {\"depth\": 2}, or [2] by position"),
	OPT_FILE("weights", 0, "FILE", weights, "load these parameters and buffers by name: a .safetensors or .clv file"),
	OPT_FLAG("eval", 0, eval, "call model.eval(), without gradients (default)"),
	OPT_FLAG("train", 0, train, "call model.train(), with gradients"),
	OPT_TEXT("device", 0, "DEVICE", device, "run the model there: cuda:0", .preset = "cpu"),
	OPT_INT("seed", 0, "N", seed, "seed for weights drawn by the factory, and for the inputs", .preset = "0"),
	OPT_GROUP("inputs"),
	OPT_TEXTS("input", 'i', "SPEC", input,
              "'f32[4,3,224,224]', by position, or by name 'ids=i64[2,16]<50257'; see above; may be repeated"),
	OPT_TEXT("dynamic-batch", 0, "LOW:HIGH", batch, "batch sizes to serve; the batch dimension is found automatically"),
	OPT_TEXTS("dim", 0, "NAME=LOW:HIGH", dim, "range of a symbol named by an input; may be repeated"),
	OPT_TEXTS("size", 0, "NAME=N", size, "the symbol's size in the example; may be repeated"),
	OPT_TEXTS("sizes", 0, "LIST", sizes,
              "always record these: batch sizes 1,2,8, or one size of each symbol, B=8,S=128"),
	OPT_WORD("prove", 0, "HOW", prove, "auto|all|none",
             "how many more sizes to record: some, within a limit of work, or all; a file serves recorded sizes",
             .preset = "auto"),
	OPT_GROUP("file"),
	OPT_TEXT("boundary", 'b', "WHERE", boundary, "cut the model: 50%, after:layer2, auto"),
	OPT_WORD("parts", 0, "PART", parts, "all|prefix|suffix", "which parts of a cut model to write"),
	OPT_FLAG("no-weights", 0, no_weights, "leave out parameters and buffers"),
	OPT_TEXTS("metadata", 0, "KEY=TEXT", metadata, "a note that the file keeps; may be repeated"),
	OPTION_END,
};

const command command_capture = {
	.name = "capture",
	.summary = "record a PyTorch model and write it as a file",
	.description =
		"Runs a model on example inputs, records its operators as a plan, replays the plan, and writes it with the "
		"model's weights. Whatever cannot be replayed bit for bit is refused, with the reason. This command needs "
		"Python: it becomes `python3 -m cleave capture` with the Python next to this program, or with that of "
		"CLEAVE_PYTHON.\n\n"
		"TARGET names a function that returns a module, a class of modules, a module, or a function to capture as it "
		"is (one that cannot be called with the factory's arguments alone). It is looked up in the current folder "
		"first. A program saved by torch.export brings its own example inputs and ranges of sizes.\n\n"
		"An input is a dtype as in plan text (f32, bf16, i64, bool, …) and sizes. A size may be a symbol, "
		"'f32[B,3,S,S]', which may change in the range given by --dim. Floats are drawn from a normal distribution; "
		"booleans and integers are 0 or 1. A suffix changes that: '<50257' draws from 0 to 50256, ':5..9' from 5 to 9; "
		"':zeros' and ':ones' fill. NAME= in front makes it an argument by name. Also taken: file.npy, "
		"file.safetensors (all its tensors, by name) and file.safetensors:KEY, followed by sizes if some are symbols, "
		"'x.npy[B,3]'; and plain values by name, 'scale=0.5', 'mask=null'.",
	.examples = "cleave capture torchvision.models:resnet18 -i 'f32[4,3,224,224]' --dynamic-batch 1:64 -o model.clv\n"
				"cleave capture net.py:Net --arg depth=4 -i 'ids=i64[B,S]<1000' --size S=16 --dim S=1:128 -o net.clv\n"
				"cleave capture program.pt2 --boundary 50% -o halves\n",
	.arguments = arguments,
	.options = options,
	REQUEST(request),
	.python = true,
};
