"""Published sizes of models, and what their config files say of their architecture."""

# Parameters of the model class of each family in transformers 5.23, built without weights from the published
# config.json. Weights' files on Hugging Face hold as many, and where a model has layers that predict further tokens
# (DeepSeek-V3, GLM-4.5, Qwen3-Next, Qwen3.5, MiMo, MiniMax, Nemotron 3) those as well, which no such class has.
FAMILY_PARAMETERS = {
    "codellama-13b": 13_016_028_160,
    "codellama-7b": 6_738_546_688,
    "deepseek-coder-1.3b": 1_346_471_936,
    "deepseek-coder-6.7b": 6_740_512_768,
    "deepseek-llm-7b": 6_910_365_696,
    "deepseek-r1-distill-qwen-1.5b": 1_777_088_000,
    "deepseek-r1-distill-qwen-14b": 14_770_033_664,
    "deepseek-r1-distill-qwen-32b": 32_763_876_352,
    "deepseek-r1-distill-qwen-7b": 7_615_616_512,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    # With 58 x 256 biases of its routers, which the class keeps as buffers.
    "deepseek-v3.2": 671_877_929_216 + 58 * 256,
    "gemma-2-27b": 27_227_128_320,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2b": 2_506_172_416,
    "gemma-3-12b": 12_187_325_040,
    "gemma-3-1b": 999_885_952,
    "gemma-3-270m": 268_098_176,
    "gemma-3-27b": 27_432_406_640,
    "gemma-3-4b": 4_300_079_472,
    "gemma-4-26b-a4b": 25_805_933_872,
    "gemma-4-31b": 31_273_086_512,
    "gemma-7b": 8_537_680_896,
    "glm-4-32b": 32_566_081_536,
    "glm-4-9b": 9_400_279_040,
    "glm-4.1v-9b": 10_292_777_472,
    "glm-4.5": 352_797_829_024,
    "glm-4.5-air": 106_852_251_264,
    "glm-4.5v": 107_710_933_120,
    "glm-4.6": 352_797_829_024,
    # With 46 x 64 biases of its routers, which the class keeps as buffers.
    "glm-4.7-flash": 29_943_390_976 + 46 * 64,
    # With 75 x 256 biases of its routers, which the class keeps as buffers.
    "glm-5.1": 743_911_199_232 + 75 * 256,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    # With 79 x 192 biases of its routers, which the class keeps as buffers.
    "hy3": 295_033_528_320 + 79 * 192,
    # LlamaForCausalLM: transformers has no class of its own.
    "internlm2.5-7b": 7_737_708_544,
    "kimi-k2": 1_026_408_232_448,
    "kimi-k2-0905": 1_026_408_232_448,
    "kimi-k2.5": 1_026_879_376_368,
    "llama-3-70b": 70_553_706_496,
    "llama-3-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-4-maverick": 401_583_781_376,
    "llama-4-scout": 108_641_793_536,
    "mimo-7b": 7_622_619_136,
    # Qwen2ForCausalLM with its vocabulary, SiglipVisionModel, WhisperEncoder, and what joins them.
    "minicpm-o-2.6": 7_613_007_360 + 417_792_240 + 307_216_384 + 68_619_264 + 16_522_240,
    "minimax-m2.5": 228_689_764_864,
    "minimax-m2.7": 228_689_764_864,
    "ministral-8b": 8_019_808_256,
    "mistral-7b-v0.3": 7_248_023_552,
    "mistral-medium-3.5-128b": 127_704_210_176,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "mistral-small-3.1-24b": 24_011_361_280,
    "moonlight-16b-a3b": 15_960_110_208,
    "nemotron-3-nano-30b-a3b": 31_577_940_288,
    # The text model's, and those of the towers and of what joins them, 1,437,789,696.
    "nemotron-3-nano-omni-30b-a3b": 33_015_729_984,
    "nemotron-3-super-120b-a12b": 120_668_707_840,
    "nemotron-h-56b": 56_324_350_464,
    "nemotron-h-8b": 8_100_852_736,
    "nemotron-nano-12b-v2": 12_310_001_152,
    "nemotron-nano-9b-v2": 8_888_227_328,
    "olmo-2-13b": 13_716_198_400,
    "olmo-2-1b": 1_484_916_736,
    "olmo-2-32b": 32_234_279_936,
    "olmo-2-7b": 7_298_617_344,
    "olmo-3-32b": 32_233_522_176,
    "olmo-3-7b": 7_298_011_136,
    "olmoe-1b-7b": 6_919_161_856,
    "phi-3-medium-4k": 13_960_238_080,
    "phi-3-mini-4k": 3_821_079_552,
    "phi-3.5-mini": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "phi-4-mini": 3_836_021_760,
    "qwen1.5-7b": 7_721_324_544,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2-57b-a14b": 57_408_658_944,
    "qwen2-57b-a14b-instruct": 57_408_658_944,
    "qwen2-math-7b": 7_615_616_512,
    "qwen2-vl-2b": 2_208_985_600,
    "qwen2-vl-72b": 73_405_560_320,
    "qwen2-vl-7b": 8_291_375_616,
    "qwen2.5-math-1.5b": 1_543_714_304,
    "qwen2.5-math-72b": 72_706_203_648,
    "qwen2.5-math-7b": 7_615_616_512,
    "qwen2.5-omni-7b": 8_931_813_888,
    "qwen2.5-vl-32b": 33_452_718_336,
    "qwen2.5-vl-3b": 3_754_622_976,
    "qwen2.5-vl-72b": 73_410_777_344,
    "qwen2.5-vl-7b": 8_292_166_656,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-14b": 14_768_307_200,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-235b-a22b-2507": 235_093_634_560,
    "qwen3-30b-a3b-2507": 30_532_122_624,
    "qwen3-4b": 4_022_468_096,
    "qwen3-4b-2507": 4_022_468_096,
    "qwen3-coder-30b-a3b": 30_532_122_624,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "qwen3-omni-30b-a3b": 31_719_205_488,
    "qwen3-vl-235b-a22b": 235_670_022_896,
    "qwen3-vl-2b": 2_127_532_032,
    "qwen3-vl-30b-a3b": 31_070_754_032,
    "qwen3-vl-32b": 33_357_390_064,
    "qwen3-vl-4b": 4_437_815_808,
    "qwen3-vl-8b": 8_767_123_696,
    "qwen3.5-0.8b": 852_985_920,
    "qwen3.5-122b-a10b": 122_562_817_776,
    "qwen3.5-2b": 2_213_241_664,
    "qwen3.5-27b": 27_356_728_560,
    "qwen3.5-35b-a3b": 35_107_181_936,
    "qwen3.5-397b-a17b": 396_802_360_816,
    "qwen3.5-4b": 4_539_265_536,
    "qwen3.5-9b": 9_409_813_744,
    "nemotron-3.5-lightning-30b-a3b": 31_577_940_288,
    "qwq-32b": 32_763_876_352,
    "seed-oss-36b": 36_151_104_512,
    "smollm2-1.7b": 1_711_376_384,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm3-3b": 3_075_098_624,
    "tinyllama-1.1b": 1_100_048_384,
    "yi-1.5-9b": 8_829_407_232,
    "yi-34b": 34_388_917_248,
    "yi-6b": 6_061_035_520,
    "deepseek-r1-0528-qwen3-8b": 8_190_735_360,
    "ernie-4.5-0.3b": 360_748_032,
    "ernie-4.5-21b-a3b": 21_825_437_888,
    "ernie-4.5-300b-a47b": 299_484_163_264,
    "internvl3-1b": 938_193_024,
    "internvl3-2b": 2_088_957_440,
    "internvl3-8b": 7_944_373_760,
    "internvl3-14b": 15_117_256_704,
    "internvl3-38b": 38_388_164_992,
    "internvl3-78b": 78_408_318_336,
    "internvl3.5-1b": 1_060_897_792,
    "internvl3.5-2b": 2_348_347_392,
    "internvl3.5-4b": 4_732_489_216,
    "internvl3.5-8b": 8_528_318_464,
    "internvl3.5-14b": 15_119_523_840,
    "internvl3.5-38b": 38_390_405_504,
    "internvl3.5-20b-a4b": 21_238_874_304,
    "internvl3.5-30b-a3b": 30_848_730_112,
    "internvl3.5-241b-a28b": 240_699_370_368,
    "kimi-k2.6": 1_026_879_376_368,
    "kimi-k2.7-code": 1_026_879_376_368,
    # As the class of inclusionAI/Ling-mini-2.0 on Hugging Face builds it: embedding and head, attention, its norms, layers'
    # norms and the last one, dense networks, experts with a shared one, routers and their biases.
    "ling-mini-2.0": 2 * 157_184 * 2_048
    + 20 * (2_048 * 24 * 128 + 16 * 128 * 2_048 + 2 * 128 + 2 * 2_048)
    + 2_048
    + 3 * 2_048 * 5_120
    + 19 * (257 * 3 * 2_048 * 512 + 256 * 2_048 + 256),
    "ling-flash-2.0": 2 * 157_184 * 4_096
    + 32 * (4_096 * 40 * 128 + 32 * 128 * 4_096 + 2 * 128 + 2 * 4_096)
    + 4_096
    + 3 * 4_096 * 9_216
    + 31 * (257 * 3 * 4_096 * 1_024 + 256 * 4_096 + 256),
    "ling-1t": 2 * 157_184 * 8_192
    + 80 * (8_192 * 80 * 128 + 64 * 128 * 8_192 + 2 * 128 + 2 * 8_192)
    + 8_192
    + 4 * 3 * 8_192 * 18_432
    + 76 * (257 * 3 * 8_192 * 2_048 + 256 * 8_192 + 256),
    # Its older class: no norms of queries and keys, no biases of routers, two shared experts.
    "ling-lite": 2 * 126_464 * 2_048
    + 28 * (2_048 * 24 * 128 + 16 * 128 * 2_048 + 2 * 2_048)
    + 2_048
    + 28 * (66 * 3 * 2_048 * 1_408 + 64 * 2_048),
    "minimax-m2.1": 228_689_764_864,
    "ministral-3-3b": 3_849_090_048,
    "ministral-3-8b": 8_918_026_240,
    "ministral-3-14b": 13_945_031_680,
    "nemotron-3-ultra-550b-a55b": 549_308_993_536,
    "qwen2.5-omni-3b": 4_703_464_448,
    "qwen3-coder-next": 79_674_391_296,
    "qwen3.6-27b": 27_356_728_560,
    "qwen3.6-35b-a3b": 35_107_181_936,
    "qwen3.8-27b": 27_356_728_560,
    "tulu-3-8b": 8_030_326_784,
    # With 75 x 256 biases of its routers, which the class keeps as buffers.
    "glm-5.2": 743_377_000_704 + 75 * 256,
    # With 47 x 256 biases of its routers, which the class keeps as buffers.
    "mimo-v2-flash": 308_778_768_832 + 47 * 256,
    # Of the text model of Step3p7; the head, and 42 x 288 biases of its routers, which that keeps as buffers.
    "step-3.5-flash": 196_428_160_256 + 128_896 * 4_096 + 42 * 288,
    # Published files have keys and values of layers that share a cache as well, 10 and 15 times 2,097,408; the class has none.
    "gemma-3n-e2b": 5_418_464_192,
    "gemma-3n-e4b": 7_818_517_072,
    "gemma-4-e2b": 5_104_297_504,
    "gemma-4-e4b": 7_941_100_832,
    # With biases of routers behind the hashed layers, which the class keeps as buffers.
    "deepseek-v4-flash": 284_332_230_231 + 40 * 256,
    "deepseek-v4-pro": 1_572_997_179_491 + 58 * 384,
    # With 57 x 128 biases of its routers, which the class keeps as buffers.
    "minimax-m3": 427_040_132_864 + 57 * 128,
    # As NeMo AutoModel builds it: embedding and head, delta attention, latent attention with a gate, one dense network,
    # experts in half the width with shared ones, routers and their biases, norms, scores of blocks, tower.
    "kimi-k3": 2 * 163_840 * 7_168
    + 69 * (7_168 * (5 * 12_288 + 96 + 128) + 12_288 * (128 + 1 + 3 * 4) + 96 + 128)
    + 24 * (7_168 * (1_536 + 576 + 2 * 12_288) + 1_536 * 18_433 + 512 + 512 * 96 * 256)
    + 3 * 7_168 * 33_792
    + 92 * (3 * (896 * 3_584 * 3_072 + 7_168 * 6_144) + 2 * 7_168 * 3_584 + 3_584 + 896 * 7_169)
    + 93 * 6 * 7_168
    + 3 * 7_168
    + 27 * (4 * 1_024 * 1_536 + 2 * 1_024 * 4_096 + 2 * 1_024)
    + 1_024 * (3 * 14**2 + 64**2 + 1)
    + 4_096 * (4_096 + 7_168)
    + 7_168,
    # With 26 x 256 biases of its routers, which the class keeps as buffers.
    "kimi-linear-48b-a3b": 49_122_675_072 + 26 * 256,
    # Without the rows that the class has for experts that compute nothing, with 28 x 768 biases of its routers.
    "longcat-flash": 741_053_585_408 - 28 * 256 * 4_096 * 6_144 + 28 * 768,
    # With 40 x 512 biases of its routers, which the class keeps as buffers.
    "ling-3.0-flash": 124_414_191_072 + 40 * 512,
    # With 42 x 288 biases of its routers, which the class keeps as buffers.
    "step-3.7-flash": 198_937_133_056 + 42 * 288,
}

# Billions of all and of a token's parameters, by the model's card or paper, and how far figures of so few digits may be
# off. "outside" says whether the card counts embedding (and head) among a token's parameters.
CARDS = {
    "deepseek-v3": (
        671,
        37,
        0.02,
        "README of deepseek-ai/DeepSeek-V3: 671B total parameters, 37B activated",
    ),
    "deepseek-v2": (
        236,
        21,
        0.02,
        "README of deepseek-ai/DeepSeek-V2: 236B total parameters, 21B activated",
    ),
    "deepseek-v2-lite": (
        15.7,
        2.4,
        0.03,
        "README of deepseek-ai/DeepSeek-V2-Lite: 15.7B total, 2.4B activated",
    ),
    "gpt-oss-120b": (
        116.83,
        5.13,
        0.005,
        "gpt-oss model card, table 1: 116.83B total, 5.13B active",
    ),
    "gpt-oss-20b": (20.91, 3.61, 0.005, "gpt-oss model card, table 1: 20.91B total, 3.61B active"),
    "ernie-4.5-300b-a47b": (
        300,
        47,
        0.02,
        "README of baidu/ERNIE-4.5-300B-A47B-PT: 300B total parameters, 47B activated",
    ),
    "kimi-k2": (
        1026,
        32,
        0.02,
        "Kimi K2 report (arXiv:2507.20534), table 2: 1.04T total, 32.6B activated",
    ),
    "qwen3-30b-a3b": (
        30.5,
        3.3,
        0.02,
        "README of Qwen/Qwen3-30B-A3B: 30.5B in total, 3.3B activated",
    ),
    "qwen3-235b-a22b": (
        235,
        22,
        0.02,
        "README of Qwen/Qwen3-235B-A22B: 235B in total, 22B activated",
    ),
    "nemotron-3-nano-30b-a3b": (
        31.6,
        3.6,
        0.02,
        "card of nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    ),
    "hy3": (295, 21, 0.02, "README of tencent/Hy3-preview: 295B in total, 21B activated"),
    "ling-mini-2.0": (16.26, 1.43, 0.005, "README of Ling-V2: 16.26B in total, 1.43B activated"),
    "ling-1t": (1000, 50, 0.03, "card of inclusionAI/Ling-1T: 1T in total, about 50B activated"),
    "ling-lite": (16.8, 2.75, 0.005, "README of inclusionAI/Ling: 16.8B in total, 2.75B activated"),
    "nemotron-3-ultra-550b-a55b": (
        550,
        55,
        0.005,
        "name of nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
    ),
    "llama-4-maverick": (
        400,
        17,
        0.02,
        "card of meta-llama/Llama-4-Maverick-17B-128E: 400B total, 17B activated",
    ),
    "glm-5.2": (
        744,
        40,
        0.02,
        "README of zai-org/GLM-5: 744B in total, 40B activated; GLM-5.2 has a quarter of its indices",
    ),
    "mimo-v2-flash": (
        309,
        15,
        0.05,
        "README of XiaomiMiMo/MiMo-V2-Flash: 309B in total, 15B activated",
    ),
    "step-3.5-flash": (
        196.81,
        11,
        0.05,
        "README of stepfun-ai/Step-3.5-Flash, section 4.1: 196.81B in total, about 11B activated",
    ),
    "deepseek-v4-flash": (
        284,
        13,
        0.05,
        "README of deepseek-ai/DeepSeek-V4-Flash: 284B in total, 13B activated",
    ),
    "minimax-m3": (
        428,
        23,
        0.05,
        "README of MiniMaxAI/MiniMax-M3: ~428B parameters, ~23B activated",
    ),
    "kimi-linear-48b-a3b": (
        49.1,
        3,
        0.05,
        "README of moonshotai/Kimi-Linear-48B-A3B-Instruct: 48B in total, 3B activated, embedding and head left out of the latter",
    ),
    "step-3.7-flash": (
        198,
        11,
        0.1,
        "card of stepfun-ai/Step-3.7-Flash: 198B in total; of the text model README of Step-3.5-Flash, about 11B activated",
    ),
}
