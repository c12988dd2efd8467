"""Options: errors with suggestions, ranges, precedence of argv, environment and INI file; help and completion."""
import json
import re
import shutil
import subprocess

import pytest

from program import DEMO, SAMPLES

PICTURE = SAMPLES / "colour_000.png"
COMMANDS = ["ask", "chat", "trace", "tokenize", "bench", "pull", "help", "version", "completion"]


def usage(p, *words):
    assert p.returncode == 2, (p.returncode, p.stdout, p.stderr)
    assert p.stdout == ""
    for word in words:
        assert word in p.stderr, p.stderr


@pytest.mark.parametrize("args, words", [
    (["ask", "--topk", "3", "x"], ["--topk", "did you mean --top-k?"]),
    (["ask", "--max-token", "3", "x"], ["did you mean --max-tokens?"]),
    (["ask", "--no-loop-chek", "x"], ["did you mean --no-loop-check?"]),
    (["ask", "--zzzzzzzz", "x"], ["has no option --zzzzzzzz"]),
    (["ask", "--top-k", "three", "x"], ["--top-k", "whole number", "three"]),
    (["ask", "--top-k", "-3", "x"], ["--top-k", "from 0"]),
    (["ask", "--top-k=99999999999999999999", "x"], ["--top-k", "from 0"]),
    (["ask", "--temp", "hot", "x"], ["--temp", "number"]),
    (["ask", "--temp", "nan", "x"], ["--temp", "number"]),
    (["ask", "--top-p", "1.5", "x"], ["--top-p", "from 0 to 1"]),
    (["ask", "--weights", "int3", "x"], ["bf16|f32"]),
    (["ask", "--background", "red", "x"], ["--background"]),
    (["ask", "x", "-m"], ["-m", "needs a value", "FOLDER"]),
    (["ask", "-m", "", "x"], ["-m is empty"]),
    (["ask", "--messages", "x"], ["ask has no option --messages; trace has"]),
    (["ask"], ["no question"]),
    (["ask", PICTURE], ["no question"]),
    (["ask", "-", ""], ["empty"]),
    (["ask", "-p", "a", "-f", "b"], ["--prompt and --file"]),
    (["ask", "-", "-", "a"], ["only once"]),
    (["ask", "--folder", SAMPLES, PICTURE, "a"], ["--folder"]),
    (["ask", "-o", "x", "a"], ["--output goes with --folder"]),
    (["ask", "--image-min-tokens", "900", "--image-max-tokens", "100", "x"], ["--image-min-tokens"]),
    (["aks"], ["no command aks", "did you mean ask?", *COMMANDS]),
    (["paint"], ["no command paint", *COMMANDS]),
    ([], ["no command", *COMMANDS]),
    (["--weights", "f32", "ask"], ["the command comes first"]),
    (["trace"], ["--messages"]),
    (["tokenize", "word"], ["no arguments"]),
    (["completion"], ["bash or zsh"]),
    (["completion", "fish"], ["bash or zsh"]),
    (["help", "aks"], ["no command"]),
])
def test_wrong_usage(margay, args, words):
    usage(margay(*args), *words)


def given(margay, *args, env=None):
    """What --max-tokens ended up as: the number of tokens of an answer that never ends by itself."""
    o = margay.json("ask", "-m", DEMO, "--ignore-eos", "--no-loop-check", *args, PICTURE, "What is it?", env=env)
    return o["usage"]["completion_tokens"]


def test_precedence(margay, tmp_path):
    ini = tmp_path / "a.ini"
    ini.write_text("# comment\nmax_tokens = 2 ; two\n\n[ask]\nmax-tokens = \"3\"\n[chat]\nmax-tokens = 9\n")
    default = tmp_path / ".config" / "margay"
    default.mkdir(parents=True)
    assert given(margay, "--max-tokens", "7") == 7
    (default / "config.ini").write_text("n-predict = 6\n")
    assert given(margay) == 6
    assert given(margay, env={"XDG_CONFIG_HOME": str(tmp_path / "none")}, *["-n", "1"]) == 1
    assert given(margay, "--config", ini) == 3
    assert given(margay, env={"MARGAY_CONFIG": str(ini)}) == 3
    assert given(margay, "--config", ini, env={"LLAMA_ARG_N_PREDICT": "4"}) == 4
    assert given(margay, "--config", ini, env={"LLAMA_ARG_N_PREDICT": "4", "MARGAY_MAX_TOKENS": "5"}) == 5
    assert given(margay, "--config", ini, "--predict=1", env={"MARGAY_MAX_TOKENS": "5"}) == 1
    assert given(margay, env={"MARGAY_MAX_TOKENS": ""}) == 6


def test_environment_errors(margay):
    usage(margay("ask", "x", env={"MARGAY_TOP_K": "many"}), "MARGAY_TOP_K", "many")
    usage(margay("ask", "x", env={"LLAMA_ARG_THREADS": "all"}), "LLAMA_ARG_THREADS")
    usage(margay("ask", "x", env={"MARGAY_IGNORE_EOS": "perhaps"}), "on or off")


@pytest.mark.parametrize("text, words", [
    ("max-tokns = 3\n", ["line 1", "max-tokns", "did you mean max-tokens?"]),
    ("\n[ask]\ntop-k\n", ["line 3", "key = value"]),
    ("[aks]\n", ["line 1", "no command"]),
    ("[ask\n", ["line 1"]),
    ("[trace]\ntop-k = 3\n", ["line 2", "trace has no option top-k"]),
    ("top-k = x\n", ["line 1", "top-k", "whole number"]),
    ("prompt = x\n", ["no option 'prompt'"]),
])
def test_ini_errors(margay, tmp_path, text, words):
    ini = tmp_path / "bad.ini"
    ini.write_text(text)
    usage(margay("ask", "--config", ini, "x"), "bad.ini", *words)


def test_missing_ini(margay, tmp_path):
    p = margay("ask", "--config", tmp_path / "no.ini", "x")
    assert p.returncode == 1 and "no.ini" in p.stderr


def test_graphics_options_warn_once(margay):
    p = margay("ask", "-m", DEMO, "-ngl", "99", "-fa", "on", "-sm", "none", "--no-mmproj-offload", "-n", "1",
               PICTURE, "What is it?")
    assert p.returncode == 0, p.stderr
    assert p.stderr.count("graphics") == 1
    for word in ("-ngl", "-fa", "-sm", "--no-mmproj-offload"):
        assert word in p.stderr


def test_flash_attention_without_value(margay):
    p = margay("ask", "-m", DEMO, "-n", "1", "-fa", "What is it?")
    assert p.returncode == 0, p.stderr


def test_dashes_end_options(margay):
    p = margay("ask", "-m", DEMO, "-n", "1", "--", "--what?")
    assert p.returncode == 0, p.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help(margay, command):
    p = margay(command, "--help")
    assert p.returncode == 0 and p.stderr == ""
    assert p.stdout.startswith(f"usage: margay {command}")
    assert max(map(len, p.stdout.splitlines())) <= 100
    assert margay("help", command).stdout == p.stdout


def test_overview(margay):
    p = margay("--help")
    assert p.returncode == 0
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", p.stdout, re.M)
    assert p.stdout == margay("help").stdout == margay("-h").stdout


def test_version(margay):
    p = margay("--version")
    assert p.returncode == 0 and re.fullmatch(r"margay \d+\.\d+\.\d+\n", p.stdout)
    assert margay("version").stdout == p.stdout


def test_man_page(margay):
    p = margay("help", "--man")
    assert p.returncode == 0 and p.stdout.startswith(".TH MARGAY 1")
    for command in COMMANDS:
        for option in re.findall(r"^  +(-.*?)(?:  |$)", margay(command, "--help").stdout, re.M):
            for word in re.findall(r"--[a-z-]+[a-z]", option):
                assert word.replace("-", "\\-") in p.stdout, word
    if shutil.which("groff"):
        q = subprocess.run(["groff", "-man", "-ww", "-z", "-Tutf8"], input=p.stdout, capture_output=True, text=True)
        assert q.returncode == 0 and q.stderr == ""


def test_bash_completion(margay):
    p = margay("completion", "bash")
    assert p.stdout == margay("--completion-bash").stdout
    script = p.stdout + """
try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _margay; echo "${COMPREPLY[*]}"; }
try margay to; try margay ask --top; try margay ask --detail ''; try margay chat --fol; try margay help a"""
    q = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True)
    assert q.stderr == ""
    assert q.stdout.splitlines() == ["tokenize", "--top-k --top-p", "low auto high", "", "ask"]


def test_zsh_completion(margay):
    p = margay("completion", "zsh")
    assert p.stdout == margay("--completion-zsh").stdout
    assert p.stdout.startswith("#compdef margay")
    if shutil.which("zsh"):
        assert subprocess.run(["zsh", "-n", "-c", p.stdout]).returncode == 0


def test_detail_and_preset(margay):
    def tokens(*args):
        o = margay.json("ask", "-m", DEMO, "-n", "1", *args, PICTURE, "What is it?")
        return o["images"][0]["tokens"]
    assert tokens("--image-max-tokens", "4") <= 4
    assert tokens("--detail", "low") == tokens("--preset", "fast") <= 169
    assert tokens("--image-min-tokens", "20") >= 20


def test_background_changes_nothing_without_alpha(margay):
    a = margay.json("ask", "-m", DEMO, PICTURE, "What colour is the shape?")
    b = margay.json("ask", "-m", DEMO, "--background", "#00ff00", PICTURE, "What colour is the shape?")
    assert json.dumps(a["token_ids"]) == json.dumps(b["token_ids"])
