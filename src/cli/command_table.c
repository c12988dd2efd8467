/* cli/command_table.c - the table of commands: names, usage lines and the texts of help. Their
 * options stand in option_tables.c; see options.h for what is made of both. */
#include "cli/options.h"

const struct mg_command_info mg_commands[MG_N_CMD] = {
    [MG_CMD_ASK] =
        {"ask",
         "[options] [IMAGE...] \"QUESTION\"",
         "ask a question about pictures",
         "Answers on standard output as the words come, with progress on standard error. The last "
         "argument is the "
         "question, those before it are pictures (JPEG, PNG, WebP, GIF, BMP; HEIC and AVIF where "
         "libheif is "
         "installed); - reads a picture from standard input. With --prompt or --file all arguments "
         "are pictures. "
         "A question without a picture is allowed.\n"
         "With --folder the same question is asked about every picture in a folder, one JSON line "
         "each; a picture "
         "that can't be read gives a line with an error. With --output the lines are appended to a "
         "file, and "
         "pictures that have a line there already are skipped, so an interrupted run can be "
         "repeated.",
         {"margay ask photo.jpg \"What is on the table?\"",
          "margay ask -m ~/Qwen3-VL-2B-Instruct --json a.png b.png \"What has changed?\"",
          "margay ask --folder receipts -o totals.jsonl \"What is the total?\"", NULL},
         SIZE_MAX},
    [MG_CMD_CHAT] = {"chat",
                     "[options] [IMAGE...]",
                     "hold a conversation about pictures in the terminal",
                     "Each line is a question; the answers before it are remembered. A line that "
                     "ends with a backslash goes on "
                     "in the next. /image PATH adds a picture to the next question, /clear begins "
                     "anew, /help lists this, "
                     "/quit or ctrl-D leaves. Ctrl-C stops an answer, not the conversation.",
                     {"margay chat photo.jpg", "margay chat -m ~/Qwen3-VL-2B-Instruct", NULL},
                     SIZE_MAX},
    [MG_CMD_SERVE] =
        {"serve",
         "[options]",
         "answer over HTTP, for OpenAI's clients and others",
         "Serves the OpenAI API (chat completions with pictures, streams, files), WebSocket, "
         "health and metrics; what there is stands at /openapi.json. Several people are answered "
         "at once: their tokens share each pass over the weights, and a second question on the "
         "same picture reads only what is new. What a request leaves open comes from the model's "
         "generation_config.json and the options here.\n"
         "The first ctrl-C or SIGTERM lets answers finish, for --drain-time at most, the second "
         "ends them. SIGHUP reads keys and certificate anew and reopens the access log.",
         {"margay serve -m Qwen3-VL-2B-Instruct",
          "margay serve -m model.safetensors --host 0.0.0.0 --api-key-file keys.txt",
          "margay serve --unix-socket /run/margay.sock --media-path /srv/pictures", NULL},
         0},
    [MG_CMD_WORKER] =
        {"worker",
         "[options] --queue URL",
         "answer what gateways put in a queue",
         "A server as serve is one, on a free port unless --port says otherwise (health, metrics), "
         "that takes as many jobs from a queue on a Redis server as it has places for, and prefers "
         "those about pictures that it has. margay serve --queue URL is the gateway that clients "
         "ask. A worker that dies loses nothing: its jobs go to others after --queue-lease.\n"
         "SIGTERM: no more jobs; those under way end within --drain-time or are given back.",
         {"margay worker -m Qwen3-VL-2B-Instruct --queue redis://10.0.0.5",
          "margay serve --queue redis://10.0.0.5 --host 0.0.0.0 --api-key-file keys.txt", NULL},
         0},
    [MG_CMD_TRACE] = {"trace",
                      "[options] --messages FILE --out FOLDER",
                      "write every stage of one request as .npy files",
                      "Reads a conversation from a JSON file ({\"messages\": [{\"role\", "
                      "\"content\"}]}, content a string or "
                      "parts {\"type\": \"image\", \"image\": FILE} and {\"type\": \"text\", "
                      "\"text\": ...}) and writes "
                      "input_ids, image_grid_thw, position_ids, pixel_values, vision, "
                      "deepstack_0.., logits and greedy (and kept, with --prune) to the "
                      "output folder, for comparison with the reference.",
                      {"margay trace -m models/demo --messages case.json --images pictures "
                       "--weights f32 --out stages",
                       NULL},
                      0},
    [MG_CMD_TOKENIZE] =
        {"tokenize",
         "--model FOLDER [--no-special]",
         "turn text into token ids and back",
         "Reads one JSON string a line from standard input and writes {\"ids\": [...], \"text\": "
         "\"...\"} a line, "
         "with the text decoded from the ids. The folder needs no more than tokenizer.json.",
         {"echo '\"Hello there\"' | margay tokenize --model models/demo", NULL},
         0},
    [MG_CMD_CONVERT] =
        {"convert",
         "[options] FOLDER -o FILE",
         "make one packed file of a checkpoint folder",
         "Writes the checkpoint with 8-bit, 4-bit or bf16 weights into one .safetensors file that "
         "holds all that is needed (configuration and tokenizer too), is mapped and used in place, "
         "and is shared by all processes that use it. Prints which matrices are kept at which "
         "precision and how far off they are. ask and chat do the same by themselves, into the "
         "cache folder, when they are given a folder.\n"
         "The file appears under its name when it is whole; an interrupted conversion leaves "
         "nothing. --verify reads a packed file through and compares its checksum.",
         {"margay convert Qwen3-VL-2B-Instruct -o qwen3-vl-2b-int8.safetensors",
          "margay convert Qwen3-VL-2B-Instruct --weights int4 -o small.safetensors",
          "margay convert --verify small.safetensors", NULL},
         1},
    [MG_CMD_PULL] =
        {"pull",
         "[options] OWNER/NAME",
         "fetch a checkpoint from Hugging Face or a compatible server",
         "Fetches config.json, the tokenizer's files, chat templates and model*.safetensors into a "
         "folder, in parallel ranges, and checks every file's checksum. Interrupted or cut off, "
         "the "
         "same command goes on where it was; files that are whole are checked and kept.\n"
         "HF_ENDPOINT names another server, HF_TOKEN an access token for gated and private "
         "repositories; it is sent to that server alone. HTTPS_PROXY, NO_PROXY and CURL_CA_BUNDLE "
         "are obeyed.",
         {"margay pull Qwen/Qwen3-VL-2B-Instruct",
          "HF_ENDPOINT=https://hf-mirror.com margay pull Qwen/Qwen3-VL-2B-Instruct -o model", NULL},
         1},
    [MG_CMD_BENCH] =
        {"bench",
         "[options]",
         "measure speed and memory, and the machine's limits",
         "Asks a question about a picture several times and reports the median time of each part, "
         "the start of a fresh process, its memory, and what share that is of this machine's "
         "limits: operations a second of its instructions and bytes a second from memory, "
         "measured in the same run. Without -m or --shape the demo model is measured, which is too "
         "small to say much. --shape writes random weights to the cache folder once (4.3 GB for "
         "qwen3-vl-2b): speed does not depend on what the weights are. Tokens are decoded one by "
         "one unless --draft says otherwise.",
         {"margay bench -m Qwen3-VL-2B-Instruct",
          "margay bench --shape qwen3-vl-2b --plot speed.svg",
          "margay bench -m Qwen3-VL-2B-Instruct --size 1200x800 --json", NULL},
         0},
    [MG_CMD_DOCTOR] =
        {"doctor",
         "[options]",
         "say what this machine offers and what holds it back",
         "Looks at the processor (instruction set, cores, siblings, quota, NUMA, governor), "
         "memory, "
         "limits, /tmp, the model and, with --redis, a Redis server; measures memory bandwidth and "
         "operations a second, and calculates from these how long an answer takes. Each finding "
         "has a level (ok, note, warning: slower than need be, problem: fails or is of no use), "
         "why it matters, and the command that mends it. Nothing is changed.\n"
         "Give it the options and the environment that serve gets. Exit status 1 when there is a "
         "problem, else 0.",
         {"margay doctor", "margay doctor -m Qwen3-VL-2B-Instruct --verify",
          "MARGAY_REDIS=redis://:password@10.0.0.5 margay doctor --json --quick", NULL},
         0},
    [MG_CMD_LOAD] =
        {"load",
         "[options] [URL]",
         "ask an OpenAI-compatible server as many people would, and measure it",
         "Sends POST /v1/chat/completions to http://, https:// or unix:/PATH [default: "
         "http://127.0.0.1:8080] and tells what came of it: answers, errors by kind, and the times "
         "to the first token, between tokens and of whole answers, as percentiles of histograms "
         "that are at most 1 part in 256 off.\n"
         "--closed N: so many clients, each of which asks its next question when its answer has "
         "ended; a slow server is asked less. --open RATE: questions come when they come, however "
         "the server does. All times count from when a question was due, so the time that it "
         "waits for a connection, or because the server stood still, is not left out; 'from "
         "sending' is what the server alone took.\n"
         "Ctrl-C ends it and prints what there is (status 130). The status is 1 when nothing was "
         "answered or a limit of --fail-above was passed.",
         {"margay load --closed 8 --pictures models/demo/samples --duration 60",
          "margay load http://gpu.example:8000 --open 5 --warm-up 10 --svg load.svg --json",
          "margay load https://api.example/v1 --api-key-file key.txt --arrivals ramp:1-20", NULL},
         1},
    [MG_CMD_HEALTH] =
        {"health",
         "[options] [URL]",
         "ask a server whether it is ready",
         "Sends GET /ready (or the path that the URL has) to http://, https:// or unix:/PATH "
         "[default: http://127.0.0.1:8080], prints the answer's status, and ends with 0 when that "
         "is 200, else with 1. For the health checks of containers.",
         {"margay health", "margay health --timeout 2 unix:/run/margay/margay.sock",
          "margay health --insecure https://localhost:8443/live", NULL},
         1},
    [MG_CMD_HELP] =
        {"help",
         "[COMMAND] [--man]",
         "explain a command, or print the man page",
         "Without a command: what there is. --man prints the whole manual as a man page (roff).",
         {"margay help ask", "margay help --man | man -l -", NULL},
         1},
    [MG_CMD_VERSION] = {"version", "", "print the version", "Also: margay --version.", {NULL}, 0},
    [MG_CMD_COMPLETION] = {"completion",
                           "bash|zsh",
                           "print a completion script for a shell",
                           "Also: margay --completion-bash, margay --completion-zsh.",
                           {"source <(margay completion bash)",
                            "margay completion zsh > \"${fpath[1]}/_margay\"", NULL},
                           1},
};
