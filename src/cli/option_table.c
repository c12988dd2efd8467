/* cli/option_table.c - the table of commands and options; see options.h for what is made of it.
 *
 * The order of options is the order in help. Spellings, short forms and environment names are llama-server's where
 * it has the option. A new option is one entry here, one name in enum mg_opt, and the place that reads it.
 */
#include "cli/options.h"

#define ASK (1u << MG_CMD_ASK)
#define CHAT (1u << MG_CMD_CHAT)
#define TRACE (1u << MG_CMD_TRACE)
#define TOKENIZE (1u << MG_CMD_TOKENIZE)
#define HELP (1u << MG_CMD_HELP)
#define EVERY ((1u << MG_N_CMD) - 1)
#define ANSWER (ASK | CHAT)
#define ENGINE (ASK | CHAT | TRACE)

const struct mg_command_info mg_commands[MG_N_CMD] = {
    [MG_CMD_ASK] = {"ask", "[options] [IMAGE...] \"QUESTION\"", "ask a question about pictures",
        "Answers on standard output as the words come, with progress on standard error. The last argument is the "
        "question, those before it are pictures (JPEG, PNG, WebP, GIF, BMP; HEIC and AVIF where libheif is "
        "installed); - reads a picture from standard input. With --prompt or --file all arguments are pictures. "
        "A question without a picture is allowed.\n"
        "With --folder the same question is asked about every picture in a folder, one JSON line each; a picture "
        "that can't be read gives a line with an error. With --output the lines are appended to a file, and "
        "pictures that have a line there already are skipped, so an interrupted run can be repeated.",
        {"margay ask photo.jpg \"What is on the table?\"",
         "margay ask -m ~/Qwen3-VL-2B-Instruct --json a.png b.png \"What has changed?\"",
         "margay ask --folder receipts -o totals.jsonl \"What is the total?\"", NULL},
        SIZE_MAX},
    [MG_CMD_CHAT] = {"chat", "[options] [IMAGE...]", "hold a conversation about pictures in the terminal",
        "Each line is a question; the answers before it are remembered. A line that ends with a backslash goes on "
        "in the next. /image PATH adds a picture to the next question, /clear begins anew, /help lists this, "
        "/quit or ctrl-D leaves. Ctrl-C stops an answer, not the conversation.",
        {"margay chat photo.jpg", "margay chat -m ~/Qwen3-VL-2B-Instruct", NULL}, SIZE_MAX},
    [MG_CMD_TRACE] = {"trace", "[options] --messages FILE --out FOLDER",
        "write every stage of one request as .npy files",
        "Reads a conversation from a JSON file ({\"messages\": [{\"role\", \"content\"}]}, content a string or "
        "parts {\"type\": \"image\", \"image\": FILE} and {\"type\": \"text\", \"text\": ...}) and writes "
        "input_ids, image_grid_thw, position_ids, pixel_values, vision, deepstack_0.., logits and greedy to the "
        "output folder, for comparison with the reference.",
        {"margay trace -m models/demo --messages case.json --images pictures --weights f32 --out stages", NULL},
        0},
    [MG_CMD_TOKENIZE] = {"tokenize", "--model FOLDER [--no-special]", "turn text into token ids and back",
        "Reads one JSON string a line from standard input and writes {\"ids\": [...], \"text\": \"...\"} a line, "
        "with the text decoded from the ids. The folder needs no more than tokenizer.json.",
        {"echo '\"Hello there\"' | margay tokenize --model models/demo", NULL}, 0},
    [MG_CMD_HELP] = {"help", "[COMMAND] [--man]", "explain a command, or print the man page",
        "Without a command: what there is. --man prints the whole manual as a man page (roff).",
        {"margay help ask", "margay help --man | man -l -", NULL}, 1},
    [MG_CMD_VERSION] = {"version", "", "print the version", "Also: margay --version.", {NULL}, 0},
    [MG_CMD_COMPLETION] = {"completion", "bash|zsh", "print a completion script for a shell",
        "Also: margay --completion-bash, margay --completion-zsh.",
        {"source <(margay completion bash)", "margay completion zsh > \"${fpath[1]}/_margay\"", NULL}, 1},
};

#define G_MODEL "Model"
#define G_INPUT "Question and pictures"
#define G_SAMPLING "Answer"
#define G_OUTPUT "Output"
#define G_GENERAL "General"

const struct mg_opt_info mg_opts[MG_N_OPT] = {
    [MG_OPT_MODEL] = {.name = "model", .alias = {"-m"}, .type = MG_TYPE_STRING, .value = "FOLDER",
        .llama = "LLAMA_ARG_MODEL", .fallback = "the small demo model that ships", .group = G_MODEL,
        .help = "Folder of the checkpoint: config.json, tokenizer.json, model.safetensors or its shards.",
        .commands = ENGINE | TOKENIZE},
    [MG_OPT_WEIGHTS] = {.name = "weights", .type = MG_TYPE_CHOICE, .choice = "auto|f32|bf16", .value = "MODE",
        .fallback = "auto, which is bf16", .group = G_MODEL,
        .help = "How the weights are computed with: auto, bf16, or f32 (the definition, slow).",
        .commands = ENGINE},
    [MG_OPT_THREADS] = {.name = "threads", .alias = {"-t"}, .type = MG_TYPE_INT, .min = -1, .max = 1024,
        .value = "N", .llama = "LLAMA_ARG_THREADS", .fallback = "what affinity, quota and cores allow",
        .group = G_MODEL, .help = "Threads that compute; 0 or -1 for the default.", .commands = ENGINE},
    [MG_OPT_CTX_SIZE] = {.name = "ctx-size", .alias = {"-c", "--max-model-len"}, .type = MG_TYPE_INT, .min = 0,
        .max = 16777216, .value = "N", .llama = "LLAMA_ARG_CTX_SIZE", .fallback = "8192", .group = G_MODEL,
        .help = "Most tokens of prompt, pictures and answer together; 0 for the default.", .commands = ENGINE},
    [MG_OPT_PREFILL_CHUNK] = {.name = "prefill-chunk", .alias = {"-ub", "--ubatch-size"}, .type = MG_TYPE_INT,
        .min = 0, .max = 16777216, .value = "N", .llama = "LLAMA_ARG_UBATCH", .fallback = "256",
        .group = G_MODEL, .help = "Prompt tokens per pass. Changes time and memory, never the answer.",
        .commands = ENGINE},

    [MG_OPT_IMAGE] = {.name = "image", .type = MG_TYPE_LIST, .argv_only = true, .value = "FILE[,FILE]",
        .group = G_INPUT, .help = "A picture, or several; may be given again. - is standard input.",
        .commands = ANSWER},
    [MG_OPT_PROMPT] = {.name = "prompt", .alias = {"-p"}, .type = MG_TYPE_STRING, .argv_only = true,
        .value = "TEXT", .group = G_INPUT, .help = "The question; every argument is then a picture.",
        .commands = ASK},
    [MG_OPT_FILE] = {.name = "file", .alias = {"-f"}, .type = MG_TYPE_STRING, .argv_only = true,
        .value = "FILE", .group = G_INPUT, .help = "Reads the question from a file (- is standard input).",
        .commands = ASK},
    [MG_OPT_SYSTEM_PROMPT] = {.name = "system-prompt", .alias = {"-sys"}, .type = MG_TYPE_STRING,
        .value = "TEXT", .fallback = "none", .group = G_INPUT, .help = "A system turn before the question.",
        .commands = ANSWER},
    [MG_OPT_FOLDER] = {.name = "folder", .type = MG_TYPE_STRING, .argv_only = true, .value = "FOLDER",
        .group = G_INPUT, .help = "Asks about every picture in a folder, one JSON line each.", .commands = ASK},
    [MG_OPT_DETAIL] = {.name = "detail", .type = MG_TYPE_CHOICE, .choice = "low|auto|high", .value = "LEVEL",
        .fallback = "auto", .group = G_INPUT,
        .help = "How finely a picture is looked at: low (about 416 x 416 pixels, fastest), auto (at most 1024 "
                "tokens a picture), high (the model's own limits, slow for large pictures).",
        .commands = ENGINE},
    [MG_OPT_IMAGE_MAX_TOKENS] = {.name = "image-max-tokens", .type = MG_TYPE_INT, .min = 1, .max = 1048576,
        .value = "N", .llama = "LLAMA_ARG_IMAGE_MAX_TOKENS", .fallback = "1024", .group = G_INPUT,
        .help = "Most tokens a picture; larger ones are scaled down.", .commands = ENGINE},
    [MG_OPT_IMAGE_MIN_TOKENS] = {.name = "image-min-tokens", .type = MG_TYPE_INT, .min = 1, .max = 1048576,
        .value = "N", .llama = "LLAMA_ARG_IMAGE_MIN_TOKENS", .fallback = "the model's least",
        .group = G_INPUT, .help = "Least tokens a picture; smaller ones are scaled up. About 1024 helps when "
                                  "places in a picture are asked for.",
        .commands = ENGINE},
    [MG_OPT_BACKGROUND] = {.name = "background", .type = MG_TYPE_STRING, .value = "RRGGBB",
        .fallback = "ffffff", .group = G_INPUT, .help = "Colour put under transparent pictures.",
        .commands = ENGINE},
    [MG_OPT_MAX_IMAGE_BYTES] = {.name = "max-image-bytes", .type = MG_TYPE_INT, .min = 1, .max = 4294967296.0,
        .value = "N", .fallback = "67108864", .group = G_INPUT, .help = "Largest picture file that is read.",
        .commands = ENGINE},
    [MG_OPT_MAX_IMAGE_PIXELS] = {.name = "max-image-pixels", .type = MG_TYPE_INT, .min = 1,
        .max = 4294967296.0, .value = "N", .fallback = "134217728", .group = G_INPUT,
        .help = "Most pixels in a picture file, checked before it is decoded.", .commands = ENGINE},
    [MG_OPT_MAX_IMAGE_SIDE] = {.name = "max-image-side", .type = MG_TYPE_INT, .min = 1, .max = 65535,
        .value = "N", .fallback = "32768", .group = G_INPUT, .help = "Longest side of a picture file in pixels.",
        .commands = ENGINE},
    [MG_OPT_MAX_IMAGES] = {.name = "max-images", .type = MG_TYPE_INT, .min = 1, .max = 65536, .value = "N",
        .fallback = "64", .group = G_INPUT, .help = "Most pictures in one conversation.", .commands = ENGINE},

    [MG_OPT_PRESET] = {.name = "preset", .type = MG_TYPE_CHOICE, .choice = "default|fast", .value = "NAME",
        .fallback = "default", .group = G_SAMPLING,
        .help = "fast: --detail low, greedy, --max-tokens 128. Options given beside it win.",
        .commands = ANSWER},
    [MG_OPT_MAX_TOKENS] = {.name = "max-tokens", .alias = {"-n", "--predict", "--n-predict"},
        .type = MG_TYPE_INT, .min = -2, .max = 16777216, .value = "N", .llama = "LLAMA_ARG_N_PREDICT",
        .fallback = "512", .group = G_SAMPLING,
        .help = "Most tokens of an answer; -1 for as many as the context holds.", .commands = ENGINE},
    [MG_OPT_MODEL_SAMPLING] = {.name = "model-sampling", .type = MG_TYPE_FLAG, .negatable = true,
        .fallback = "off: greedy", .group = G_SAMPLING,
        .help = "Samples as the model's generation_config.json says.", .commands = ANSWER},
    [MG_OPT_TEMP] = {.name = "temp", .alias = {"--temperature"}, .type = MG_TYPE_FLOAT, .min = 0, .max = 100,
        .value = "X", .llama = "LLAMA_ARG_TEMP", .fallback = "0", .group = G_SAMPLING,
        .help = "Temperature; 0 always takes the likeliest token.", .commands = ANSWER},
    [MG_OPT_TOP_K] = {.name = "top-k", .type = MG_TYPE_INT, .min = 0, .max = 16777216, .value = "N",
        .llama = "LLAMA_ARG_TOP_K", .fallback = "0: off", .group = G_SAMPLING,
        .help = "Samples among the N likeliest tokens.", .commands = ANSWER},
    [MG_OPT_TOP_P] = {.name = "top-p", .type = MG_TYPE_FLOAT, .min = 0, .max = 1, .value = "X",
        .llama = "LLAMA_ARG_TOP_P", .fallback = "1: off", .group = G_SAMPLING,
        .help = "Samples among the likeliest tokens that together have probability X.", .commands = ANSWER},
    [MG_OPT_MIN_P] = {.name = "min-p", .type = MG_TYPE_FLOAT, .min = 0, .max = 1, .value = "X",
        .llama = "LLAMA_ARG_MIN_P", .fallback = "0: off", .group = G_SAMPLING,
        .help = "Drops tokens with less than X times the likeliest one's probability.", .commands = ANSWER},
    [MG_OPT_REPEAT_PENALTY] = {.name = "repeat-penalty", .alias = {"--repetition-penalty"},
        .type = MG_TYPE_FLOAT, .min = 0.01, .max = 100, .value = "X", .llama = "LLAMA_ARG_REPEAT_PENALTY",
        .fallback = "1: off", .group = G_SAMPLING,
        .help = "Makes tokens of the prompt and the answer less likely. Harms tables.", .commands = ANSWER},
    [MG_OPT_PRESENCE_PENALTY] = {.name = "presence-penalty", .type = MG_TYPE_FLOAT, .min = -100, .max = 100,
        .value = "X", .llama = "LLAMA_ARG_PRESENCE_PENALTY", .fallback = "0: off", .group = G_SAMPLING,
        .help = "Subtracted from the logit of tokens that the answer has.", .commands = ANSWER},
    [MG_OPT_FREQUENCY_PENALTY] = {.name = "frequency-penalty", .type = MG_TYPE_FLOAT, .min = -100, .max = 100,
        .value = "X", .llama = "LLAMA_ARG_FREQUENCY_PENALTY", .fallback = "0: off", .group = G_SAMPLING,
        .help = "The same, for each time the answer has the token.", .commands = ANSWER},
    [MG_OPT_SEED] = {.name = "seed", .alias = {"-s"}, .type = MG_TYPE_INT, .min = -1, .max = 9.2e18,
        .value = "N", .llama = "LLAMA_ARG_SEED", .fallback = "0", .group = G_SAMPLING,
        .help = "Same seed, same answer; -1 takes one from the clock.", .commands = ANSWER},
    [MG_OPT_STOP] = {.name = "stop", .alias = {"-r", "--reverse-prompt"}, .type = MG_TYPE_LIST,
        .value = "TEXT", .group = G_SAMPLING,
        .help = "Ends the answer before this text; may be given again.", .commands = ANSWER},
    [MG_OPT_IGNORE_EOS] = {.name = "ignore-eos", .type = MG_TYPE_FLAG, .llama = "LLAMA_ARG_IGNORE_EOS",
        .fallback = "off", .group = G_SAMPLING, .help = "Goes on after an end token (for measuring).",
        .commands = ANSWER},
    [MG_OPT_LOOP_CHECK] = {.name = "loop-check", .type = MG_TYPE_FLAG, .negatable = true, .fallback = "on",
        .group = G_SAMPLING, .help = "Stops an answer that only repeats itself.", .commands = ANSWER},

    [MG_OPT_JSON] = {.name = "json", .type = MG_TYPE_FLAG, .argv_only = true, .group = G_OUTPUT,
        .help = "Prints one JSON object at the end: text, token ids, usage, timings, and what was done to each "
                "picture.",
        .commands = ASK},
    [MG_OPT_JSONL] = {.name = "jsonl", .type = MG_TYPE_FLAG, .argv_only = true, .group = G_OUTPUT,
        .help = "One JSON object a line; what --folder always prints.", .commands = ASK},
    [MG_OPT_OUTPUT] = {.name = "output", .alias = {"-o"}, .type = MG_TYPE_STRING, .argv_only = true,
        .value = "FILE", .group = G_OUTPUT,
        .help = "With --folder: appends the lines to FILE and skips pictures that have one.", .commands = ASK},
    [MG_OPT_SPECIAL] = {.name = "special", .type = MG_TYPE_FLAG, .negatable = true, .argv_only = true,
        .fallback = "on", .group = G_INPUT,
        .help = "Recognises special tokens in the text; with --no-special they are ordinary characters.",
        .commands = TOKENIZE},

    [MG_OPT_MESSAGES] = {.name = "messages", .type = MG_TYPE_STRING, .argv_only = true, .value = "FILE",
        .group = G_INPUT, .help = "JSON file with the conversation.", .commands = TRACE},
    [MG_OPT_IMAGES] = {.name = "images", .type = MG_TYPE_STRING, .argv_only = true, .value = "FOLDER",
        .fallback = "the working folder", .group = G_INPUT,
        .help = "Where the conversation's pictures lie.", .commands = TRACE},
    [MG_OPT_OUT] = {.name = "out", .alias = {"-o"}, .type = MG_TYPE_STRING, .argv_only = true,
        .value = "FOLDER", .group = G_OUTPUT, .help = "Folder for the .npy files; made when missing.",
        .commands = TRACE},
    [MG_OPT_PIXEL_VALUES] = {.name = "pixel-values", .type = MG_TYPE_STRING, .argv_only = true,
        .value = "FILE", .group = G_INPUT,
        .help = "Patches from this .npy file take the place of the pictures' own.", .commands = TRACE},
    [MG_OPT_PRUNE] = {.name = "prune", .type = MG_TYPE_STRING, .argv_only = true, .value = "HOW",
        .fallback = "off", .group = G_INPUT,
        .help = "Leaving out uneventful parts of a picture; this version has only off.", .commands = TRACE},

    [MG_OPT_MAN] = {.name = "man", .type = MG_TYPE_FLAG, .argv_only = true, .group = G_OUTPUT,
        .help = "Prints the manual as a man page.", .commands = HELP},
    [MG_OPT_CONFIG] = {.name = "config", .type = MG_TYPE_STRING, .value = "FILE",
        .fallback = "margay/config.ini in $XDG_CONFIG_HOME or ~/.config, when there", .group = G_GENERAL,
        .help = "INI file: key = value with options' names, for all commands or below [COMMAND].",
        .commands = ENGINE | TOKENIZE},
    [MG_OPT_PROGRESS] = {.name = "progress", .type = MG_TYPE_FLAG, .negatable = true, .fallback = "on",
        .group = G_GENERAL, .help = "Tells the stages on standard error, with a bar on a terminal.",
        .commands = ENGINE},
    [MG_OPT_VERBOSE] = {.name = "verbose", .alias = {"-v"}, .type = MG_TYPE_FLAG, .fallback = "off",
        .group = G_GENERAL, .help = "Tells more: the kernels in use, and the times of each answer.",
        .commands = ENGINE},
    [MG_OPT_HELP] = {.name = "help", .alias = {"-h"}, .type = MG_TYPE_FLAG, .argv_only = true,
        .group = G_GENERAL, .help = "Prints this.", .commands = EVERY},
};

const struct mg_ignored_option mg_ignored_options[] = {
    {{"-ngl", "--gpu-layers", "--n-gpu-layers"}, 1},
    {{"-sm", "--split-mode"}, 1},
    {{"-ts", "--tensor-split"}, 1},
    {{"-mg", "--main-gpu"}, 1},
    {{"-dev", "--device"}, 1},
    {{"-fa", "--flash-attn"}, -1},
    {{"--mmproj-offload", "--no-mmproj-offload"}, 0},
    {{"-kvo", "--kv-offload"}, 0},
    {{"-nkvo", "--no-kv-offload"}, 0},
    {{"--op-offload", "--no-op-offload"}, 0},
    {{"-ot", "--override-tensor"}, 1},
    {{"-cmoe", "--cpu-moe"}, 0},
    {{"-ncmoe", "--n-cpu-moe"}, 1},
};
const size_t mg_n_ignored_option = sizeof mg_ignored_options / sizeof mg_ignored_options[0];
