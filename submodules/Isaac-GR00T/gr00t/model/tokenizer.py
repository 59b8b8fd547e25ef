"""Build the tokenizer of a checkpoint from its instructions, without a download."""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

_PADDING, _START = "[PAD]", "[CLS]"

_MANIPULATION_WORDS = """
a all an and any at away back beside behind between both by close down each every first from front get grasp grip
gripper hand hold in inside into it its lay left lift lower middle move named near next of off on one onto open other
out over pick place point pour press pull push put reach release right rotate second sort stack take the then to touch
turn two under up upright with black blue brown colour color dark gray green grey light orange pink purple red white
yellow apple ball banana basket big bin block book bottle bowl box button cabinet can cup cube cylinder disc dish door
drawer fork goal handle item knife knob lid marker microwave mug object oven pan peg plate pot shelf small spoon
switch table tool top bottom tray target
"""


def build_tokenizer(sentences: Iterable[str] = (), *, vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """Train a byte-level tokenizer with one token per known word, as far as `vocab_size` (256 are bytes) allows."""
    # An unknown word is split into shorter pieces, down to bytes, so every text can be encoded. Case is ignored.
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=1,
        special_tokens=[_PADDING, _START],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*sorted(set(sentences)), _MANIPULATION_WORDS], trainer)
    # With a start token even an empty instruction has a token.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_START} $A", special_tokens=[(_START, tokenizer.token_to_id(_START))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=_PADDING, cls_token=_START)
