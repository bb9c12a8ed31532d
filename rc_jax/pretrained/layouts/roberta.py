"""The RoBERTa layout (Liu et al. 2019), also of XLM-RoBERTa and CamemBERT: BERT's, with positions counted otherwise."""

from rc_jax.pretrained.layouts import bert
from rc_jax.pretrained.layouts.shared import Layout
from rc_jax.pretrained.settings import Config


def layout(config: Config) -> Layout:
    """Tokens have positions pad + 1, pad + 2, …; a padding token has position pad and is not counted."""
    padding = config.integer("pad_token_id", 1, least=0)
    return bert.build(config, root="roberta.", heads=("lm_head.*", "classifier.*", "qa_outputs.*"), padding=padding)
