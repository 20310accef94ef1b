"""On-policy distillation: a student learns, token by token, what a teacher thinks of its own responses.

The loss is the reverse KL divergence to the teacher, over responses that the student samples (Agarwal et al. 2024, GKD,
arXiv:2306.13649, with its student's share of data at 1; Gu et al. 2024, MiniLLM, arXiv:2306.08543). Its gradient is a
policy gradient whose advantage at a token is log(teacher / student), without looking at later tokens. Rewards are
watched, and nothing is learnt from them; of any other algorithm a teacher's term is added to the advantages.
"""

from rlplan.dataflow import GENERATE, MODEL_REWARD, RULE_REWARD, Algorithm, actor_update

ALGORITHM = Algorithm(
    name="on-policy-distillation",
    title="On-policy distillation",
    paper="Agarwal et al. 2024, On-policy distillation of language models, arXiv:2306.13649",
    required_roles=("actor", "teacher"),
    advantage="none",
    kl_in="none",
    tasks=(GENERATE, MODEL_REWARD, RULE_REWARD, actor_update()),
)
