"""Launch scripts evaluated without running: what each form of a shell's language means, against bash itself."""

import os
import shlex
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.planner.configs.shell.programs import printed_by
from rlplan.planner.configs.shell.recorder import run_recorded
from rlplan.planner.configs.shell.script import evaluate

# Each script ends by starting `launch`; what follows is what it starts with.
SCRIPTS = {
    "defaults": ('A=${X:-1} B=${A:-2}; : "${C:=3}"; launch $A ${B} "$C" ${D-4} ${E:+no} x', "1 1 3 4 x"),
    "nested defaults": ('X=${Y:-${Z:-"a b"}}; launch "$X"', "a b"),
    "arithmetic": ("N=3; M=$((N * (4 + $N) % 5)); launch $M $((7 / 2)) $((-7 / 2)) $((2 ** 3))", "1 3 -3 8"),
    "a pattern partly in quotes": ('if [[ "$*" == *"q"* ]]; then A=yes; fi; if [[ ab == *"x"* ]]; then A=no; fi; launch $A', "yes"),
    "a port in an address": ('P=80; A=(a=http://h:$P/v1 b); launch "${A[@]}" http://h:$P/v1 x', "a=http://h:80/v1|b|http://h:80/v1|x"),
    "variables in a path": ("M=x; T=y; S=z; F=recipes/$M/$T/config_$S.yaml; launch $F a/$M-$T.$S", "recipes/x/y/config_z.yaml|a/x-y.z"),
    "blanks between variables in quotes": ('A=1; B=2; C="$A $B \\\n  $A "; launch "$A  $B " "a $A $B c" "$C"', "1  2 |a 1 2 c|1 2   1 "),
    "arithmetic in arithmetic": ("G=8; M=4; B=$(($(($G * $M)) * $((M - 1)))); launch $B $((2 * $((3 + 1))))", "96 8"),
    "arithmetic in a default": ("A=2; B=${C:-$((A * 512))}; launch b=$B", "b=1024"),
    "arrays": ('A=(a "b c"); A+=(d); E=(); launch "${A[@]}" ${#A[@]} "${A[1]}" "${E[@]}"', "a|b c|d|3|b c"),
    "array in an override": ("A=(x=1 y='[1, 2]'); launch \"${A[@]}\"", "x=1|y=[1, 2]"),
    "case": ('M=gb200; case "$M" in h*) G=8 ;; gb200|gb300) G=4 ;; *) G=1 ;; esac; launch $G', "4"),
    "if and elif": ('A=2; if [ "$A" = 1 ]; then B=x; elif (( A > 1 )); then B=y; else B=z; fi; launch $B', "y"),
    "tests": ('if [[ -n "${V:-}" && x == x* ]] || ! [ 1 -gt 2 ]; then launch yes; fi', "yes"),
    "else": ('if [ -z "${V:-}" ] && [[ ab == b* ]]; then launch no; else launch yes; fi', "yes"),
    "prefix and suffix": ('P=a/b/c.tar; launch ${P##*/} ${P%.tar} ${P%%/*} ${P#a/} ${P/b/x} ${P^^}', "c.tar|a/b/c|a|b/c.tar|a/x/c.tar|A/B/C.TAR"),
    "indirect": ("A=B; B=7; launch ${!A} ${B:0:1} ${#B}", "7 7 1"),
    "function": ('f() { local n=$1; launch "$n" "$2"; }; f 1 "2 3"', "1|2 3"),
    "loop": ("for x in a b; do Y=\"${Y:-}$x\"; done; launch $Y", "ab"),
    "arguments one by one": ('while [ $# -gt 0 ]; do case "$1" in r) R=yes; shift ;; *) P="$1"; shift 1 ;; esac; done; launch "$P" $R $#', "p q|yes|0"),
    "counted loop": ("I=0; until [ $I -ge 9 ]; do I=$((I + 1)); if [ $I -eq 3 ]; then break; fi; done; launch $I", "3"),
    "rounds left": ("for x in a b c; do if [ $x = b ]; then continue; fi; Y=\"${Y:-}$x\"; done; launch $Y", "ac"),
    "array as one word": ('A=(a b); launch x="u ${A[*]}" "$*"', "x=u a b|p q r"),
    "substitution": ("A=$(echo one two); B=$(basename /x/y.sh); launch \"$A\" $B", "one two|y.sh"),
    "continuation": ("launch a \\\n  b=1 \\\n  'c d'", "a|b=1|c d"),
    "a count of words known in part": ('A=(a "b=$(date +%s)"); C=(); if [ ${#A[@]} -gt 1 ]; then C+=(yes); fi; launch "${C[@]}"', "yes"),
    "remarks among words": ("launch a \\\n  `# of b` \\\n  b=1 `# c, of 'it` \\\n  'c `# d`'", "a|b=1|c `# d`"),
    "subshell": ("A=1; (A=2); { B=3; }; launch $A $B", "1 3"),
    "quotes": ('A=x; launch "$A"y "a\\"b" "two  $A"', 'xy|a"b|two  x'),
    "word splitting": ('A="a=1 \\\n b=2"; launch $A', "a=1 b=2"),
    "arguments": ('launch "$@" $1 $#', "p q|r|p|q|2"),
    "heredoc": ("cat > /dev/null <<EOF\nlaunch wrong\nEOF\nlaunch right", "right"),
    "unset": ("A=1; unset A; launch ${A:-gone}", "gone"),
    "eval": ("C='launch a='; V='b c'; eval \"$C$V\"", "a=b c"),
    "an argument that is not given": ('if [[ ${3} != x ]] && [ -z "$3" ]; then launch yes; fi', "yes"),
    "a variable that nothing sets": ('while [ $# -gt 0 ]; do case $1 in m) M=$2; shift 2 ;; *) break ;; esac; done; if [ -z "$M" ]; then M=usual; fi; launch $M', "usual"),
    "counts of commas": ("D=0,1,2,3; A=$(echo \"$D\" | tr ',' '\\n' | wc -l); B=$(echo $D | awk -F',' '{print NF}'); C=$(($(echo $D | tr -cd ',' | wc -c) + 1)); launch $A $B $C $(echo $D | grep -o , | wc -l)", "4 4 4 3"),
    "commas read into an array": ("IFS=',' read -ra G <<< \"0,1,2\"; launch ${#G[@]} ${G[2]}", "3 2"),
    "words read": ("read -r A B <<< 'one two three'; IFS=: read C D < <(echo x:y:z); launch $A \"$B\" $C $D", "one|two three|x|y:z"),
    "an array cut at commas": ("D=0,1,2; A=(${D//,/ }); C=${D//[^,]/}; launch ${#A[@]} $((${#C} + 1)) ${D/,*/}", "3 3 0"),
    "lengths": ("D=0,1,2,3; launch $(expr length \"$D\" / 2 + 1)", "4"),
    "programs": ("A=$(expr 1024 + 3 \\* 2); B=$(printf '%s-%02d' x 7); C=$(seq -s, 0 3); launch $A $B $C $(echo '7 / 2' | bc) $(seq 2)", "1030 x-07 0,1,2,3 3 1 2"),
    "arguments behind files": ('A="x y"; launch a 2> /dev/null b 2>&1 "$A" $A', "a|b|x y|x|y"),
    "filters": ("P=a-b_c.d; launch $(echo $P | cut -d_ -f1) $(echo $P | sed 's/-/+/g') $(echo $P | rev) $(echo 'z y' | awk '{print $2}') $(printf '2\\n1\\n' | sort | head -1)", "a-b a+b_c.d d.c_b-a y 1"),
    "lines of an array": ("mapfile -t A < <(printf 'a b\\nc\\n'); launch ${#A[@]} \"${A[0]}\"", "2|a b"),
    "folders": ("cd /usr/lib/..; A=$(pwd); B=$(cd bin && pwd); (cd /); launch $A $B $PWD $(dirname /a/b/c.sh) $(basename c.sh .sh)", "/usr /usr/bin /usr /a/b c"),
    "arguments set anew": ("set -e; set -- x 'y z'; shift; launch \"$1\" $#", "y z|1"),
    "letters": ("set -- -m big -v rest; while getopts 'm:v' O; do case $O in m) M=$OPTARG ;; v) V=1 ;; esac; done; shift $((OPTIND - 1)); launch $M $V $1", "big 1 rest"),
    "a heredoc": ("A=1; V=$(cat <<EOF\nx=$A\nEOF\n); launch $V", "x=1"),
    "a loop that counts": ("A=(a b c); for ((i = 0; i < ${#A[@]}; i += 2)); do Y=\"${Y:-}${A[$i]}\"; done; launch $Y $i", "ac 4"),
    "numbers that change": ("N=1; ((N++)) || true; ((N += 3, M = N * 2)); K=$((N--)); launch $N $M $K $((++N))", "4 10 5 5"),
    "arrays with names": ("declare -A M=([a]=1 [b]='2 3'); M[c]=4; K=b; launch \"${M[$K]}\" ${M[c]}", "2 3|4"),
    "assignments of a substitution": ("A=1; B=$(A=2; echo $A); launch $A $B", "1 2"),
    "what is echoed": ("launch $(echo -n a; echo b) \"$(echo -e 'c\\td')\"", "ab|c\td"),
    "a case of an argument that is not given": ('case "$3" in "") launch none ;; *) launch some ;; esac', "none"),
    "printing into a variable": ("A=(0 1 1); printf -v F '[%s]' \"$(IFS=', '; echo \"${A[*]}\")\"; launch \"$F\" \"${A[*]}\"", "[0,1,1]|0 1 1"),
    "a star before a variable": ("N=1; M=3; A=(x [0]*$N+[1]*$M); launch ${A[1]}", "[0]*1+[1]*3"),
    "a variable without a value of its own": ('if [ -z "${V:-}" ]; then V=usual; fi; launch "$V"', "usual"),
    "appended text": ("A=x; A+=y; export B=${A}z; launch $B", "xyz"),
}  # fmt: skip
ARGUMENTS = ("p q", "r")


def words_of(text):
    commands = [
        each for each in evaluate(text, ARGUMENTS, {}).commands if each.words[0].value == "launch"
    ]
    assert len(commands) == 1
    assert not [gap for word in commands[0].words for gap in word.gaps]
    return [word.value for word in commands[0].words[1:]]


def expected_of(text):
    return text.split("|") if "|" in text else [text] if text == "a b" else text.split()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_starts_with_the_words_that_are_written(name):
    text, expected = SCRIPTS[name]
    assert words_of(text) == expected_of(expected)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_itself_starts_the_same(tmp_path):
    parts = ['launch() { printf "%s\\037" "$@"; printf "\\n"; }']
    parts += [f"( {text}\n)" for text, _ in SCRIPTS.values()]
    script = tmp_path / "all.sh"
    script.write_text("\n".join(parts) + "\n")
    said = subprocess.run(
        ["bash", str(script), *ARGUMENTS], capture_output=True, text=True, check=True
    ).stdout
    found = [line.split("\037")[:-1] for line in said.splitlines()]
    assert found == [expected_of(expected) for _, expected in SCRIPTS.values()]


PROGRAMS = (
    "tr , '\\n'", "tr -d ' '", "tr -cd ,", "tr a-c A-C", "tr -s ' '", "tr '[:upper:]' '[:lower:]'", "wc -l", "wc -w", "wc -c",
    "awk -F, '{print NF}'", "awk '{print $2}'", "awk '{print $NF}'", "cut -d, -f1", "cut -d' ' -f2-", "cut -c1-3",
    "sed 's/,/ /g'", "sed 's#a#b#'", "sed 's/b*/x/'", "sed 's/ *$//'", "sed -E 's/(a|b)+/x/g'", "head -n 1", "head -1",
    "tail -n +2", "sort -u", "uniq", "grep a", "grep -o ,", "grep -c b", "grep -v a", "rev", "xargs",
)  # fmt: skip


@pytest.mark.full
@pytest.mark.skipif(shutil.which("awk") is None, reason="needs awk")
@given(st.lists(st.text("ab,c A1/\n", max_size=14), min_size=1, max_size=4))
@settings(max_examples=10, deadline=None)
def test_small_programs_print_what_the_real_ones_do(texts):
    cases = [(program, f"{text}\n") for program in PROGRAMS for text in texts]
    script = "".join(
        f"printf %s {shlex.quote(text)} | {program}; printf '\\037'\n" for program, text in cases
    )
    said = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ, LC_ALL="C"),
    ).stdout
    assert said.split("\037")[:-1] == [
        printed_by(shlex.split(program), text) for program, text in cases
    ]


@pytest.mark.parametrize(
    "words",
    ["sed -n 2p", "awk '/x/ {print}'", "cut -b1", "tr '[:alpha:]' x", "head -c 3", "sort -k2", "bc -l", "jq .a", "expr a : b"],
)  # fmt: skip
def test_a_form_of_a_program_that_is_not_known_is_not_guessed(words):
    assert printed_by(shlex.split(words), "a b\n") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("launch --root <your_root> --batch 4", "--root|<your_root>|--batch|4"),
        ("launch path=<your_path> n=4", "path=<your_path>|n=4"),
        ("launch <your_root>/data\necho behind", "<your_root>/data"),
        ("if true; then\n  launch --to <your-host>\nfi", "--to|<your-host>"),
        ("launch 'a <b> c' \"<d>\" <in.txt >out.txt", "a <b> c|<d>"),
        ("launch <in.txt>out.txt b", "b"),
        ("cd / && launch a > log b", "a|b"),
        ("launch a 2>&- b >&- c", "a|b|c"),
    ],
)
def test_a_word_to_be_filled_in_is_no_pair_of_files(text, words):
    (found,) = evaluate(f"{text}\n").commands
    assert "|".join(each.value for each in found.words[1:]) == words


def test_what_cannot_be_evaluated_is_named_with_its_line():
    text = "A=1\nNAME=run_$(date +%s)\nlaunch a=$A name=$NAME b=${UNSET}\n"
    (command,) = evaluate(text, (), {}).commands
    assert [word.value for word in command.words[1:2]] == ["a=1"]
    assert command.words[2].gaps[0].line == 2
    assert "date +%s" in str(command.words[2].gaps[0])
    assert "UNSET is not set" in str(command.words[3].gaps[0])


def test_a_loop_whose_end_is_not_known_is_left_out():
    found = evaluate("until ray status; do A=1; done\nwhile true; do A=2; done\nlaunch ${A}")
    assert [gap.line for gap in found.gaps] == [1, 2]
    assert "how often it goes round" in str(found.commands[0].words[1].gaps[0])


def test_a_branch_on_something_unknown_is_left_out_and_what_it_assigns_is_unknown():
    found = evaluate("A=1\nif [ -f /some/file ]; then A=2; fi\nlaunch $A\n", (), {})
    assert [gap.line for gap in found.gaps] == [2]
    assert found.commands[-1].words[1].gaps


def launches(command):
    return command.words[0].value == "launch"


@pytest.mark.parametrize(
    ("text", "started"),
    [
        ('if [ "$RANK" -eq 0 ]; then ray start; A=1; launch $A; else ray join; fi', ["launch 1"]),
        ('if [ "$RANK" != 0 ]; then sleep 9; else A=2; launch $A; fi', ["launch 2"]),
        ("if [ -f x ]; then A=1; elif ping h; then A=2; launch $A; else A=3; fi", ["launch 2"]),
        ("if [ -f x ]; then launch 1; else launch 2; fi", []),
        ("if [ -f x ]; then other 1; fi; launch 3", ["launch 3"]),
        ("if ping host; then if ping other; then launch 4; fi; exit 1; fi; launch 5", ["launch 4"]),
    ],
)
def test_of_branches_between_which_only_a_run_decides_the_one_that_launches_is_taken(text, started):
    found = evaluate(text, (), {}, {}, launches)
    words = [" ".join(word.value for word in each.words) for each in found.commands]
    assert [each for each in words if each.startswith("launch")] == started
    assert not [gap for each in found.commands if launches(each) for gap in each.words[1].gaps]


def test_what_an_untaken_branch_does_is_taken_back():
    text = 'A=1; if ping h; then A=2; shift; B=3; other; exit 1; else launch $A ${B:-no} "$1"; fi'
    found = evaluate(text, ("p",), {}, {}, launches)
    assert [word.value for word in found.commands[-1].words] == ["launch", "1", "no", "p"]
    assert len(found.commands) == 2


@pytest.mark.parametrize(
    "text",
    [
        'A=$(if [ -z "$X" ]; then echo one; else echo other; fi); launch $A',
        'f() { echo one; }; if [ -n "$X" ]; then f() { echo other; }; fi; launch $(f)',
    ],
)
def test_an_untaken_branch_prints_and_defines_nothing(text):
    assert words_of(text) == ["one"]


def test_an_untaken_branch_hands_nothing_on():
    found = evaluate('A=1; if [ -n "$X" ]; then export A; fi; export B=2; bash other.sh')
    assert {name: text.value for name, text in found.exported.items()} == {"B": "2"}


def test_a_script_that_would_end_for_an_unset_variable_is_read_on():
    """It is set where the script runs, or it would say so there."""
    text = 'if [ -z "$M" ]; then echo set M >&2; exit 1; fi; launch model=$M n=1'
    found = evaluate(text, (), {})
    assert found.refusal is None
    assert "M is not set" in str(found.commands[-1].words[1].gaps[0])
    assert not found.commands[-1].words[2].gaps


@pytest.mark.parametrize(
    "test", ["[ $# -lt 1 ]", '[ -z "$1" ]', '[ -z "$M" ]', '[[ "$#" -ne 2 ]]', "(( $# < 2 ))"]
)
def test_a_script_that_would_end_for_an_argument_is_read_on(test):
    text = f"M=$1\nif {test}; then echo usage; exit 1; fi\nlaunch model=$M n=1\n"
    found = evaluate(text, (), {})
    assert found.refusal is None
    assert "argument 1 is not given" in str(found.commands[-1].words[1].gaps[0])
    assert not found.commands[-1].words[2].gaps
    assert (
        evaluate(text.replace("n=1", "n=$2"), ("m", "3"), {}).commands[-1].words[2].value == "n=3"
    )


def test_what_a_text_starts_has_the_line_of_its_eval():
    found = evaluate("C='launch \\\n a=1'\n\neval $C x=${GONE}\neval $GONE x=1\n")
    assert [word.value for word in found.commands[0].words[:2]] == ["launch", "a=1"]
    assert [bool(word.gaps) for word in found.commands[0].words] == [False, False, True]
    assert [gap.line for gap in found.gaps] == [5]
    (command,) = evaluate("C='launch \\\n a=1'\n\neval $C\n").commands
    assert [word.line for word in command.words] == [4, 4]


def test_texts_that_evaluate_themselves_are_refused():
    found = evaluate("C='eval $C'; eval $C")
    assert found.refusal == (1, "evaluates texts 20 deep")


def test_a_script_that_refuses_says_where_and_why():
    text = (
        'N=3\nif (( N % 2 != 0 )); then\n  echo "N=${N} must be even" >&2\n  exit 1\nfi\nlaunch\n'
    )
    found = evaluate(text, (), {})
    assert found.refusal == (4, "N=3 must be even")
    assert not found.commands


def test_probes_answer_for_the_machine():
    text = "D=${D:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}; launch $D"
    assert evaluate(text, (), {}, {"import torch_npu": False}).commands[-1].words[1].value == "gpu"
    assert evaluate(text, (), {"D": "npu"}).commands[-1].words[1].value == "npu"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_script_that_computes_more_is_run_with_its_launchers_replaced(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(
        "N=$(python3 -c 'print(6 * 7)')\nM=$(printf '%s' 1 2 3 | tr -d 2)\n"
        f'touch {tmp_path}/ran\nray job submit -- python3 -m some.module n=$N m=$M "$@"\n'
    )
    found = run_recorded(script, ["x=1"])
    assert (tmp_path / "ran").exists()
    words = [word.value for word in found.commands[-1].words]
    assert words == [
        "ray",
        "job",
        "submit",
        "--",
        "python3",
        "-m",
        "some.module",
        "n=42",
        "m=13",
        "x=1",
    ]


def test_a_command_that_is_given_several_in_quotes_starts_them_whatever_one_asks_the_machine():
    text = (
        "\"$RUN/in_container.sh\" bash -lc '\nnvidia-smi topo -m\npython3 train.py\n'\nnvidia-smi\n"
    )
    found = evaluate(text, probes={"nvidia-smi": True})
    assert [command.words[1].value for command in found.commands] == ["bash"]


@pytest.mark.parametrize(
    "line",
    [
        "srun bash -c 'nvidia-smi; python3 train.py'",
        'srun bash -c "nvidia-smi && python3 train.py"',
        "python3 train.py name=nvidia-smi",
    ],
)
def test_a_start_is_one_though_a_word_of_it_asks_the_machine(line):
    def starts(command):
        return command.words[1].value == "train.py"

    (found,) = evaluate(line, probes={"nvidia-smi": True}, wanted=starts).commands
    assert "train.py" in " ".join(word.value for word in found.words)


def test_several_statements_of_python_are_one_question():
    text = 'if python3 -c "\nimport torch\nimport torch_npu\n"; then launch a; else launch b; fi\n'
    (found,) = evaluate(text, probes={"import torch_npu": False}).commands
    assert found.words[1].value == "b"
