"""The keys of one `config.json`: read, complained of by file and key, and none that matters left unread."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict

# A key of such a name changes sizes, unless it is known not to.
_SIZE: Final = re.compile(
    r"^(num|n)_|_(dim|size|rank|heads|experts|layers|types|type|pattern|window|interval|step|freq|bias|blocks?)$"
    r"|^use_.*(norm|window|bias|moe|mlp|attention)|^per_layer_"
)

# Keys of such names that change nothing of parameters, memory and time in any family.
_HARMLESS: Final = frozenset(
    {
        "model_type",
        "chunk_size",
        "ep_size",
        "group_size",
        "hidden_act_type",
        "n_group",
        "num_beams",
        "num_beam_groups",
        "num_logits_to_keep",
        "num_return_sequences",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "num_nextn_predict_layers",
        "mtp_num_hidden_layers",
        "max_window_layers",
        "pretraining_tp",
        "problem_type",
        "rope_type",
        "mamba_ssm_cache_dtype",
        "use_mamba_kernels",
        "use_bidirectional_attention",
        "output_attentions",
        "output_gate_type",
        "rope_local_base_freq",
        "vocab_size_per_layer_input",
    }
)
# Formats in which models are published whose training takes the weights in 16 bits all the same.
_PUBLISHED_FORMATS: Final = ("fp8", "mxfp4", "modelopt", "compressed-tensors")
# Of a model that also speaks, the part that is trained with RL: it reads, looks, listens and answers in text.
_THINKER: Final = "thinker_config"
_TEXT: Final = "text_config"
_TIED: Final = "tie_word_embeddings"
# Larger than any size of a model; products of a few such sizes still fit the numbers of cost formulas.
LARGEST_SIZE: Final = 2**31
LARGEST_NUMBER: Final = 1e18


class ConfigKeys:
    """Read the keys of a file; those of a nested text model go before those around it.

    Args:
        inside: The key of the file that holds the data; none: they are the whole file.

    Attributes:
        defaults: Numbers of keys that the file may leave out.
        renamed: Keys by which newer files know what a key says.
    """

    def __init__(self, file: Path, data: Mapping[str, Any], *, inside: str = "") -> None:
        thinker = data.get(_THINKER)
        data = thinker if isinstance(thinker, dict) else data
        self.file, self.outer, self._inside = file, data, inside
        nested = data.get(_TEXT)
        self.nested = isinstance(nested, dict)
        self.data: Mapping[str, Any] = nested if isinstance(nested, dict) else data
        self.defaults: Mapping[str, int | float | bool] = FrozenDict()
        self.renamed: Mapping[str, str] = FrozenDict()
        self._asked: set[str] = set()

    def error(self, key: str, problem: str, *, allowed: str | None = None) -> FileError:
        """Return the error that names the file and a key."""
        value = self.data.get(key)
        shown = value if isinstance(value, (str, int, float, bool)) else None
        field = f"{self._inside}.{key}" if self._inside else key
        return FileError(str(self.file), problem, field=field, value=shown, allowed=allowed)

    def get(self, key: str) -> object:
        """Return what the file or the family says of a key, None if neither does."""
        self._asked.add(key)
        value = self.data.get(key)
        if key == _TIED:
            # The classes ask the whole file; a text model that says no has a matrix of its own in the weights.
            told = [each[key] for each in (self.data, self.outer) if each.get(key) is not None]
            value = all(told) if told else None
        newer = self.renamed.get(key)
        if newer is not None:
            self._asked.add(newer)
            value = self.data.get(newer) if value is None else value
        return self.defaults.get(key) if value is None else value

    def within(self, key: str) -> "ConfigKeys":
        """Return the keys of what the file has under one; none where that is no mapping."""
        told = self.get(key)
        return ConfigKeys(self.file, told if isinstance(told, dict) else {}, inside=key)

    def integer(self, key: str, *, default: int | None = None, least: int = 0) -> int:
        """Return a whole number that a size or a count can be.

        Raises:
            FileError: It is missing, or something else.
        """
        value = self.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.error(key, "is missing", allowed="a whole number")
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(key, "must be a whole number")
        if not least <= value <= LARGEST_SIZE:
            problem, allowed = f"must be at least {least}", f"a whole number from {least}"
            if value > least:
                problem, allowed = "is larger than any", f"at most {LARGEST_SIZE:,}"
            raise self.error(key, problem, allowed=allowed)
        return value

    def optional(self, key: str | None) -> int:
        """Return a whole number, 0 where there is none."""
        return 0 if key is None else self.integer(key, default=0)

    def number(self, key: str, *, default: float) -> float:
        """Return a number above 0.

        Raises:
            FileError: It is something else.
        """
        value = self.get(key)
        value = default if value is None else value
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value <= LARGEST_NUMBER:  # type: ignore[operator]
            raise self.error(key, "must be a number above 0", allowed=f"at most {LARGEST_NUMBER:g}")
        return float(value)  # type: ignore[arg-type]

    def said(self, saying: bool | str) -> bool:
        """Return what is always so, or what a key says."""
        return bool(self.get(saying)) if isinstance(saying, str) else saying

    def names(self, key: str) -> tuple[str, ...] | None:
        """Return a list of names, None where there is none.

        Raises:
            FileError: It is something else.
        """
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.error(key, "must be a list of names")
        return tuple(value)

    def refuse_the_rest(self, understood: tuple[str, ...]) -> None:
        """Refuse what would change sizes and was never asked for.

        Raises:
            FileError: There is such a key; it is named.
        """
        quantised = self.data.get("quantization_config") or self.outer.get("quantization_config")
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        if quantised and method not in _PUBLISHED_FORMATS:
            allowed = f"absent, or of {', '.join(_PUBLISHED_FORMATS)}"
            raise self.error(
                "quantization_config", "quantised weights are not supported", allowed=allowed
            )
        known = self._asked | _HARMLESS | set(understood)
        for key, value in self.data.items():
            if value and key not in known and _SIZE.search(key):
                problem = "is not understood, and may change the sizes of the model"
                raise self.error(key, problem, allowed="absent, false or 0")
