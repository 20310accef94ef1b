"""Reward mathematics: the package `math-verify` finds the response's answer equal to the row's `answer`."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from rlplan.errors import CapabilityError, FileError
from rlplan.executor.learning.answers import answer_of, origin_of

PACKAGE = "math_verify"
# Columns of the data that it reads; a run without them is refused before it starts.
NEEDS = ("answer",)


class MathVerify:
    """Compare answers by what they mean: `1/2`, `0.5` and a LaTeX fraction are one."""

    def check_installed(self) -> None:
        """Refuse to go on without the package.

        Raises:
            CapabilityError: It is not installed here.
        """
        if find_spec(PACKAGE) is None:
            raise CapabilityError(
                "math-verify",
                "the rule math_verify needs the package math-verify; install it with:"
                " pip install 'math-verify[antlr4_13_2]', or take boxed_match or numeric_match",
            )

    def __call__(self, prompt: str, response: str, row: dict[str, Any]) -> float:
        """Return 1 if the response's last answer means the same as the row's `answer`, else 0.

        Raises:
            FileError: The row has no `answer`, or one that is no mathematics.
        """
        package = import_module(PACKAGE)  # takes a second, where it is used
        answer = answer_of(row, prompt, "math_verify")
        # A bare answer in LaTeX is seen as mathematics inside of dollars only.
        wanted = package.parse(answer) or package.parse(f"${answer}$")
        if not wanted:
            problem = "cannot be read as mathematics"
            raise FileError(origin_of(row, prompt), problem, field="answer", value=answer)
        return float(package.verify(wanted, package.parse(response)))


RULE = MathVerify()
