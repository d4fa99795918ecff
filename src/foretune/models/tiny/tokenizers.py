"""CLIP, T5, Qwen, Llama and Gemma tokenizers built in memory: one token per common caption word, else characters."""

from collections import Counter
from functools import cache
from itertools import pairwise

from tokenizers.pre_tokenizers import ByteLevel
from transformers import CLIPTokenizer, GemmaTokenizer, LlamaTokenizerFast, Qwen2Tokenizer, T5Tokenizer

# Words of captions like "a small red circle on blue" or "a painting in the style of ...".
CAPTION_LINES = (
    "a an and at by for from in is it of on over the to under with",
    "tiny small medium large big",
    "red green blue yellow purple orange white black pink brown grey gray cyan magenta teal",
    "circle square triangle star diamond cross ring rectangle ellipse pentagon hexagon heart",
    "one two three left right top bottom centre center middle corner near next",
    "background photo picture image painting drawing sketch style art plain simple dark light bright",
    "person man woman child face dog cat bird horse deer frog tree flower house car truck boat ship airplane",
    "automobile harbour dusk dawn night day sea sky sun moon mountain river forest city street water fire",
)
CAPTION_WORDS = tuple(word for line in CAPTION_LINES for word in line.split())

# CLIP's model has 77 positions, the start and the end of the text included.
NUM_CLIP_TOKENS = 77
CLIP_END_OF_WORD = "</w>"

T5_SPACE = "▁"
# Letters, digits and marks of western European text: ASCII, Latin-1 and the typographic quotes and dashes.
T5_CHARACTERS = (
    *map(chr, range(0x21, 0x7F)),
    *map(chr, range(0xA1, 0x100)),
    *"\u2018\u2019\u201c\u201d\u2013\u2014\u2026\u20ac",
)
# Log-probabilities: a word must cost less than its first two characters together.
T5_WORD_SCORE = -4.0
T5_CHARACTER_SCORE = -6.0

QWEN_SPACE = "Ġ"
QWEN_END_OF_TEXT = "<|endoftext|>"
QWEN_CHAT_TOKENS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
QWEN_CHAT_WORDS = ("system", "user", "assistant")
# As Qwen3's own template writes one message: each turn between its marks, and an answer that begins without thought.
QWEN_CHAT_TEMPLATE = """{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}
{%- endif -%}
{%- endif -%}"""

# Llama's special tokens as of version 3.
LLAMA_BEGIN_OF_TEXT = "<|begin_of_text|>"
LLAMA_END_OF_TEXT = "<|end_of_text|>"
LLAMA_PAD = "<pad>"
LLAMA_CHAT_TOKENS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
LLAMA_CHAT_WORDS = ("system", "user", "assistant")
LLAMA_SPACE = "▁"

GEMMA_SPECIAL_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")


def build_clip_tokenizer(*, pad_token: str = "<|endoftext|>") -> CLIPTokenizer:  # noqa: S107 - not a password
    """Builds a byte-level BPE tokenizer for any text; ids are in the published order, with the end of text last."""
    merges = _learn_merges(tuple((*word[:-1], word[-1] + CLIP_END_OF_WORD) for word in CAPTION_WORDS))
    alphabet = sorted(ByteLevel.alphabet())
    tokens = [
        *alphabet,
        *(symbol + CLIP_END_OF_WORD for symbol in alphabet),
        *(first + second for first, second in merges),
        "<|startoftext|>",
        "<|endoftext|>",
    ]
    return CLIPTokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=list(merges),
        pad_token=pad_token,
        model_max_length=NUM_CLIP_TOKENS,
    )


def build_t5_tokenizer(*, model_max_length: int) -> T5Tokenizer:
    """Builds a unigram tokenizer; characters outside western European text are unknown to it."""
    vocab = [
        *((special, 0.0) for special in ("<pad>", "</s>", "<unk>")),
        (T5_SPACE, T5_CHARACTER_SCORE),
        *((character, T5_CHARACTER_SCORE) for character in T5_CHARACTERS),
        # CLIP's tokenizer lowercases its input; T5's does not.
        *((T5_SPACE + form, T5_WORD_SCORE) for word in CAPTION_WORDS for form in (word, word.capitalize())),
    ]
    return T5Tokenizer(vocab=vocab, extra_ids=0, model_max_length=model_max_length)


def build_qwen_tokenizer(*, further_words: tuple[str, ...] = ()) -> Qwen2Tokenizer:
    """Builds a byte-level BPE tokenizer for any text and for chats; `further_words` are single tokens, too."""
    words = dict.fromkeys((*CAPTION_WORDS, *further_words, *QWEN_CHAT_WORDS))
    # The space before a word is part of it; one that begins a line has none.
    merges = _learn_merges(tuple((*space, *word) for space in ((), (QWEN_SPACE,)) for word in words))
    tokens = [*sorted(ByteLevel.alphabet()), *(first + second for first, second in merges), QWEN_END_OF_TEXT]
    return Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(dict.fromkeys(tokens))},
        merges=list(merges),
        eos_token=QWEN_CHAT_TOKENS[1],
        pad_token=QWEN_END_OF_TEXT,
        extra_special_tokens=list(QWEN_CHAT_TOKENS),
        chat_template=QWEN_CHAT_TEMPLATE,
    )


def build_llama_tokenizer(*, further_words: tuple[str, ...] = ()) -> LlamaTokenizerFast:
    """Builds a BPE tokenizer for any text and for chats; `further_words` are single tokens, too.

    Llama 3's own one works on bytes. transformers 5 reads such a tokenizer as if its spaces were Llama 2's, and loses
    them; so this one writes spaces as Llama 2's does, and bytes only for characters that it does not know.
    """
    # Chats have an empty line after each header, a single token of Llama 3.
    specials = (LLAMA_BEGIN_OF_TEXT, LLAMA_END_OF_TEXT, *LLAMA_CHAT_TOKENS, LLAMA_PAD)
    vocab, merges = _with_byte_fallback((*further_words, *LLAMA_CHAT_WORDS), specials, further_pairs=(("\n", "\n"),))
    return LlamaTokenizerFast(
        vocab=vocab,
        merges=merges,
        unk_token=None,
        bos_token=LLAMA_BEGIN_OF_TEXT,
        eos_token=LLAMA_END_OF_TEXT,
        pad_token=LLAMA_PAD,
        extra_special_tokens=list(LLAMA_CHAT_TOKENS),
        add_bos_token=True,
        add_prefix_space=False,
        padding_side="right",
    )


def build_gemma_tokenizer(*, further_words: tuple[str, ...] = ()) -> GemmaTokenizer:
    """Builds a BPE tokenizer for any text; `further_words` are single tokens, too."""
    vocab, merges = _with_byte_fallback(further_words, GEMMA_SPECIAL_TOKENS)
    return GemmaTokenizer(vocab=vocab, merges=merges, add_bos_token=True, padding_side="right")


def _with_byte_fallback(
    further_words: tuple[str, ...], specials: tuple[str, ...], *, further_pairs: tuple[tuple[str, ...], ...] = ()
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Returns vocabulary and merges with spaces written as Llama 2 does, and bytes for unknown characters."""
    words = dict.fromkeys((*CAPTION_WORDS, *further_words))
    spelled = tuple((*space, *word) for space in ((), (LLAMA_SPACE,)) for word in words)
    merges = _learn_merges((*spelled, *further_pairs))
    tokens = [
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *(LLAMA_SPACE, "\n", *T5_CHARACTERS),
        *(first + second for first, second in merges),
        *specials,
    ]
    return {token: index for index, token in enumerate(dict.fromkeys(tokens))}, list(merges)


@cache
def _learn_merges(words: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, str], ...]:
    """Returns byte-pair merges, in order of application, that make each word, given as symbols, a single token.

    The most frequent pair is merged first; ties are broken alphabetically. The library's own trainer
    (tokenizers.trainers.BpeTrainer) is not used, because its merges differ between processes.
    """
    spelled = list(words)
    merges: list[tuple[str, str]] = []
    while True:
        counts = Counter(pair for symbols in spelled for pair in pairwise(symbols))
        if not counts:
            return tuple(merges)
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        merges.append(best)
        spelled = [_merged(symbols, best) for symbols in spelled]


def _merged(symbols: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    """Joins each occurrence of the pair in the symbols, from left to right."""
    merged: list[str] = []
    index = 0
    while index < len(symbols):
        width = 2 if symbols[index : index + 2] == pair else 1
        merged.append("".join(symbols[index : index + width]))
        index += width
    return tuple(merged)
