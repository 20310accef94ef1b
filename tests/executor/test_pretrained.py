"""Pre-trained models: in every family and layout the numbers that `transformers` has for the same folder."""

import importlib
from functools import cache, partial
from typing import Any

import pytest
import torch

from rlplan.errors import FileError
from rlplan.executor.model.building import PRETRAINED_FAMILIES, causal_lm_class, read_config
from rlplan.executor.parallel.meshes import make_mesh
from rlplan.executor.parallel.positions import task_positions
from rlplan.executor.passes import infer
from rlplan.executor.rollout.engines.torch_static import TorchStaticEngine
from rlplan.executor.rollout.sampling import GenerateSettings
from rlplan.executor.weights.pretrained import PretrainedFolder
from rlplan.executor.weights.shard import build_shard
from rlplan.plan import TaskPlan
from rlplan.profiles.jobs.config.reading import read_hf_config

pytestmark = pytest.mark.ray

# No number of ranks divides the vocabulary.
VOCABULARY, WIDTH, PROMPT, STEPS = 67, 14, 6, 8
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "vocab_size": VOCABULARY, "max_position_embeddings": 128, "head_dim": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.2,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.1,
    "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
# Queries are longer from each multiple of its first lengths on.
MINISTRAL3 = YARN | {"original_max_position_embeddings": 4, "llama_4_scaling_beta": 0.5}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
# By name: the family, and in what its model differs from the sizes.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 2": ("llama", {}),
    "llama 3": ("llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": 5}),
    "phi3": ("phi3", {"sliding_window": 6}),
    "gemma2": ("gemma2", {"sliding_window": 4, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0,
                          "final_logit_softcapping": 3.0, "tie_word_embeddings": True}),
    "gemma3": ("gemma3_text", {"sliding_window": 4, "query_pre_attn_scalar": 8, "tie_word_embeddings": True,
                               "layer_types": ["sliding_attention", "full_attention"] * 2}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1, 0], "tie_word_embeddings": True}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"] * 2,
                        "rope_parameters": {"sliding_attention": PLAIN, "full_attention": YARN}}),
    "ministral3": ("ministral3", {"rope_parameters": MINISTRAL3}),
    "glm4": ("glm4", {"attention_bias": True}),
    "seed_oss": ("seed_oss", {}),
    "ernie4_5": ("ernie4_5", {}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": ("qwen3_moe", EXPERTS | {"norm_topk_prob": True}),
    "glm4_moe": ("glm4_moe", {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 2,
                              "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "use_qk_norm": True,
                              "attention_bias": True, "routed_scaling_factor": 1.5}),
    "qwen2_moe": ("qwen2_moe", EXPERTS | {"shared_expert_intermediate_size": 40}),
}  # fmt: skip
LAYOUTS = {
    "one": (1, {}),
    "tp 2": (2, {"tp": 2}),
    "tp 2, sequences cut": (2, {"tp": 2, "engine": "torch-3d-sp"}),
    "pp 2": (2, {"pp": 2}),
    "pp 2, interleaved": (2, {"pp": 2, "chunks": 2}),
    "cp 2": (2, {"cp": 2}),
    "fully sharded": (2, {"zero": 3}),
    "sharded gradients": (2, {"zero": 2}),
    "ep 2": (2, {"ep": 2}),
    "tp 2 x pp 2": (4, {"tp": 2, "pp": 2}),
    "tp 2, fully sharded": (4, {"tp": 2, "zero": 3}),
    "ep 2, fully sharded": (2, {"ep": 2, "zero": 3}),
    "ep 2 x tp 2": (4, {"ep": 2, "tp": 2}),
}
CASES = [
    (model, layout)
    for model in MODELS
    for layout in LAYOUTS
    if "moe" in model or model == "mixtral" or "ep 2" not in layout
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return a folder for each model's name, as `transformers` writes it."""

    def write(name):
        family, differs = MODELS[name]
        folder = tmp_path_factory.mktemp("model")
        model = made(family, differs)
        model.save_pretrained(folder)
        return folder

    return cache(write)


def made(family, differs):
    """Return a model of a family with random weights, no two of whose norms are alike."""
    where, prefix = PRETRAINED_FAMILIES[family]
    module = importlib.import_module(f"transformers.models.{where}.configuration_{where}")
    config = getattr(module, f"{prefix}Config")(**SIZES | differs)
    torch.manual_seed(3)
    model = causal_lm_class(config)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
        for name, buffer in model.named_buffers():
            if name.endswith(
                "e_score_correction_bias"
            ):  # which decides that other experts are chosen
                buffer.add_(torch.randn_like(buffer) * 0.2)
    return model.eval()


def batch():
    """Return tokens and parts of sequences of many lengths, two of each prompt."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(3, VOCABULARY, (6, WIDTH), generator=generator)
    parts = torch.full(tokens.shape, 1, dtype=torch.int8)
    parts[:, PROMPT:] = 2
    for row in range(len(tokens)):
        tokens[row, :PROMPT] = tokens[row // 2 * 2, :PROMPT]
        parts[row, : row // 2] = 0
        parts[row, WIDTH - row % 4 :] = 0
    return tokens, parts


def theirs(folder):
    """Return what `transformers` has of a folder: log-probabilities of the batch, and greedy tokens of its prompts."""
    config = read_config(folder)
    config._attn_implementation = "eager"  # the only one that every family has
    model = (
        causal_lm_class(config).from_pretrained(folder, config=config, dtype=torch.float32).eval()
    )
    tokens, parts = batch()
    found = torch.zeros(tokens.shape)
    greedy = []
    with torch.no_grad():
        for row in range(len(tokens)):
            here = parts[row] != 0
            mine = tokens[row][here][None]
            logits = model(mine).logits[0].float()
            chosen = logits.log_softmax(-1)[:-1].gather(1, mine[0, 1:, None])[:, 0]
            found[row, here.nonzero()[1:, 0]] = chosen
            said = tokens[row, :PROMPT][parts[row, :PROMPT] != 0][None]
            before = said.shape[1]
            for _ in range(STEPS):
                said = torch.cat([said, model(said).logits[:, -1:].argmax(-1)], dim=1)
            greedy.append(said[0, before:].tolist())
    return found, greedy


def shard_in(layout, ranks, rank, folder, precision="fp32"):
    """Return a rank's shard of a folder's model in a layout, to be trained."""
    mesh = make_mesh(task_positions(layout, ranks), rank, torch.device("cpu"), layout.ep)
    return build_shard(
        read_hf_config(folder), "lm", mesh, role="actor", seed=1, precision=precision, folder=folder,
        learning_rate=1e-3, layout=layout,
    )  # fmt: skip


def log_probs_in(rank, ranks, settings, folder, precision="fp32"):
    """Return the log-probabilities of a rank's rows of the batch, and which rows these are."""
    layout = TaskPlan(pool="p0", micro_batch=3, **settings)
    shard = shard_in(layout, ranks, rank, folder, precision)
    tokens, parts = batch()
    width, dp = len(tokens) // shard.mesh.dp_size, shard.mesh.dp
    mine = slice(dp * width, (dp + 1) * width)
    found = infer(shard, tokens[mine], parts[mine], "log_probs", micro_batch=3, temperature=1.0)
    return dp, None if found is None else found.numpy()


@pytest.mark.full
@pytest.mark.parametrize(("model", "layout"), CASES)
def test_log_probabilities_are_those_of_transformers(model, layout, folders, worker_pool):
    folder = folders(model)
    expected, _ = theirs(folder)
    ranks, settings = LAYOUTS[layout]
    found = worker_pool.on_ranks(ranks, partial(log_probs_in, settings=settings, folder=folder))
    parts = {dp: values for dp, values in found if values is not None}
    together = torch.cat([torch.tensor(parts[dp]) for dp in sorted(parts)])
    torch.testing.assert_close(together, expected, rtol=0, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("model", MODELS)
def test_greedy_tokens_are_those_of_transformers(model, folders):
    folder = folders(model)
    _, expected = theirs(folder)
    mesh = make_mesh(task_positions(TaskPlan(pool="p0"), 1), 0, torch.device("cpu"))
    shard = build_shard(
        read_hf_config(folder), "lm", mesh, role="actor", seed=1, precision="fp32", folder=folder
    )
    tokens, parts = batch()
    rows = len(tokens)
    made = TorchStaticEngine(shard).generate(
        tokens[:, :PROMPT],
        parts[:, :PROMPT] != 0,
        torch.full((rows,), STEPS),
        torch.arange(rows),
        STEPS,
        GenerateSettings(
            temperature=1.0, end_ids=(), max_running=4, greedy=True, seed=0, iteration=0
        ),
    )
    assert made.tokens[:, PROMPT:].tolist() == expected


def pieces_read(rank, ranks, settings, folder):
    """Return the sizes of what a rank reads of a folder, of what it then holds, and of its largest parameter."""
    read, plain = [], PretrainedFolder.read

    def noted(self, name, part):
        values = plain(self, name, part)
        read.append(values.numel())
        return values

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PretrainedFolder, "read", noted)
        shard = shard_in(TaskPlan(pool="p0", micro_batch=3, **settings), ranks, rank, folder)
    held = [target.numel() for _, _, target in shard.flat.pieces()]
    return read, held


@pytest.mark.parametrize("layout", ["tp 2, fully sharded", "tp 2 x pp 2"])
def test_a_rank_reads_what_it_holds_and_no_more(layout, folders, worker_pool):
    ranks, settings = LAYOUTS[layout]
    folder = folders("qwen2")
    job = partial(pieces_read, settings=settings, folder=folder)
    for read, held in worker_pool.on_ranks(ranks, job):
        assert sum(read) == sum(held)
        assert max(read) <= max(held)


@pytest.mark.parametrize("head", ["score", "no score"])
def test_a_reward_model_has_its_folders_head_or_a_fresh_one(head, folders, tmp_path):
    folder = folders("llama 2")
    config = read_config(folder)
    config.num_labels = 1
    llama = importlib.import_module("transformers.models.llama.modeling_llama")
    torch.manual_seed(4)
    model = llama.LlamaForSequenceClassification(config).eval()
    if head == "score":
        model.save_pretrained(tmp_path)
        folder = tmp_path
    mesh = make_mesh(task_positions(TaskPlan(pool="p0"), 1), 0, torch.device("cpu"))
    shard = build_shard(
        read_hf_config(folder),
        "scalar",
        mesh,
        role="reward",
        seed=1,
        precision="fp32",
        folder=folder,
    )
    tokens, parts = batch()
    found = infer(shard, tokens, parts, "scores", micro_batch=3, temperature=1.0)
    if head == "no score":
        assert found.std() > 0.1
        return
    with torch.no_grad():
        for row in range(len(tokens)):
            mine = tokens[row][parts[row] != 0][None]
            hidden = model.model(mine).last_hidden_state[0, -1]
            assert found[row] == pytest.approx(model.score(hidden).item(), abs=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_of_a_folder_that_are_not_finite_are_named(tmp_path, value):
    model = made("qwen3", MODELS["qwen3"][1])
    with torch.no_grad():
        model.model.layers[2].mlp.up_proj.weight[3, 4] = value
    model.save_pretrained(tmp_path)
    with pytest.raises(FileError, match=r"layers\.2\.mlp\.up_proj\.weight: holds weights that are"):
        shard_in(TaskPlan(pool="p0", micro_batch=3), 1, 0, tmp_path)


def test_dropout_of_a_folder_is_off(tmp_path):
    made("phi3", {"resid_pdrop": 0.5, "attention_dropout": 0.5}).save_pretrained(tmp_path)
    _, found = log_probs_in(0, 1, {}, tmp_path)
    torch.testing.assert_close(torch.tensor(found), theirs(tmp_path)[0], rtol=0, atol=1e-5)
