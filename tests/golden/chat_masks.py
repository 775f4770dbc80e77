"""Rendered conversations, token ids and assistant masks as transformers gives them.

Writes `chat_tokenizer/` and `chat_masks.json`; see README.md.
"""

import json
import re
import shutil
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
VOCAB = 400
SPECIAL = [
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
]

TEXT = """
The assistant answers the user. A user asks a question, and the system sets the rules.
You are a helpful assistant. Please keep the answers short and correct.
What is the capital of France? The capital of France is Paris.
How many legs does a spider have? A spider has eight legs, an ant has six.
Let me think about that first. The sum of two and three is five, so the answer is five.
Thank you! You are welcome. Is there anything else that you want to know?
Write a function that adds two numbers: fn add(a: i32, b: i32) -> i32 { a + b }
Hello there, how are you today? I am fine, thank you, and what about you?
Über Köln fährt der Zug nach Zürich. 東京は日本の首都です。

fn main() {
    let answer = add(2, 3);
    println!("{answer}");
}


The first line ends here.


  The second paragraph is indented, and the third is not.


  The third paragraph says that the user and the assistant take turns.
"""

# The text inside a generation block is what transformers masks. Contents that end such a block must
# end in a single-byte character: of a last character split over several tokens, transformers 5.19
# masks the first token only, which is not a behaviour to reproduce.

CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' %}
{%- generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}
{%- else %}
{{- message['content'] + '<|im_end|>' }}
{%- endif %}
{{- '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# Generation around the text alone: the end-of-turn token is not masked.
CHATML_TEXT_ONLY = """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {%- if message.role == 'assistant' -%}
        {%- generation -%}{{- message.content -}}{%- endgeneration -%}
    {%- else -%}
        {{- message.content -}}
    {%- endif -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""

# A default system message, trimmed contents, bos_token, block trimming of newlines and indents.
LLAMA3 = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set system = 'Answer briefly.' %}
    {%- set turns = messages %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' ~ system ~ '<|eot_id|>' }}
{%- for turn in turns %}
    {{- '<|start_header_id|>' ~ turn['role'] ~ '<|end_header_id|>\\n\\n' }}
    {%- if turn['role'] == 'assistant' %}
        {%- generation %}
            {{- turn['content'] | trim ~ '<|eot_id|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- turn['content'] | trim ~ '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

# The system text joins the first user turn; loop.index0, raise_exception and eos_token.
MISTRAL = """\
{%- set ns = namespace(system='', offset=0) -%}
{%- if messages[0].role == 'system' -%}
    {%- set ns.system = messages[0].content + '\\n\\n' -%}
    {%- set ns.offset = 1 -%}
{%- endif -%}
{{- bos_token -}}
{%- for message in messages[ns.offset:] -%}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
        {{- raise_exception('roles must alternate between user and assistant') -}}
    {%- endif -%}
    {%- if message.role == 'user' -%}
        {{- '[INST] ' + (ns.system if loop.first else '') + message.content + ' [/INST]' -}}
    {%- else -%}
        {%- generation -%}{{- ' ' + message.content + eos_token -}}{%- endgeneration -%}
    {%- endif -%}
{%- endfor -%}
"""

# Thinking: blocks of turns before the last user message are dropped, later ones are rewritten to
# one form. Python string methods, a reversed slice and namespace writes inside a loop.
THINKING = """\
{%- set ns = namespace(last_user=-1) %}
{%- for message in messages[::-1] %}
    {%- set index = messages | length - 1 - loop.index0 %}
    {%- if ns.last_user < 0 and message.role == 'user' and message.content is string %}
        {%- set ns.last_user = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role != 'assistant' %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- else %}
        {%- set content = message.content %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
        {%- if loop.index0 > ns.last_user and (reasoning or loop.last) %}
            {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content + '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


def without_generation(template):
    """The same template as its publisher would write it: no generation tags."""
    tag = r"\{%-? (?:end)?generation -?%\}"
    return re.sub(tag, "", re.sub(rf"(?m)^ *{tag}\n", "", template))


# name -> (template, template that gives the mask, bos_token, eos_token)
TEMPLATES = {
    "chatml": (CHATML, CHATML, None, "<|im_end|>"),
    "chatml_plain": (without_generation(CHATML), CHATML, None, "<|im_end|>"),
    "chatml_text_only": (CHATML_TEXT_ONLY, CHATML_TEXT_ONLY, None, "<|im_end|>"),
    "llama3": (LLAMA3, LLAMA3, "<|begin_of_text|>", "<|eot_id|>"),
    "llama3_plain": (without_generation(LLAMA3), LLAMA3, "<|begin_of_text|>", "<|eot_id|>"),
    "mistral": (MISTRAL, MISTRAL, "<s>", "</s>"),
    "mistral_plain": (without_generation(MISTRAL), MISTRAL, "<s>", "</s>"),
    "thinking": (THINKING, THINKING, None, "<|im_end|>"),
    "thinking_plain": (without_generation(THINKING), THINKING, None, "<|im_end|>"),
}


def turns(*contents, system=None):
    """Alternating user and assistant messages, after an optional system message."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    for index, content in enumerate(contents):
        role = "user" if index % 2 == 0 else "assistant"
        messages.append({"role": role, "content": content})
    return messages


CONVERSATIONS = {
    "single": turns("What is the capital of France?", "The capital of France is Paris."),
    "multi_turn": turns(
        "How many legs does a spider have?",
        "A spider has eight legs.",
        "And an ant?",
        "An ant has six.",
        "Thank you!",
        "You are welcome.",
    ),
    "system": turns(
        "Hello there, how are you today?",
        "I am fine, thank you.",
        "What about Paris?",
        "It is the capital of France.",
        system="You are a helpful assistant.\nKeep the answers short.",
    ),
    "thinking": turns(
        "What is two and three?",
        "<think>\nThe sum is five.\n</think>\n\nThe answer is five.",
        "And one more?",
        "<think>\nFive and one.\nSo six.\n</think>\n\nThe answer is six.",
        system="Think first.",
    ),
    "unicode": turns(
        "Wie fährt man nach Köln? 🚆",
        "Über Zürich: 東京は日本の首都です。 Naïve café, e\u0301 and é differ. 👩‍🚀🇫🇷.",
        "Добрый день — “quotes” …",
        "שלום, 你好, ok",
    ),
    "empty_assistant": turns("Say nothing.", "", "And now?", "", "Speak!", "Hello."),
    "whitespace": turns(
        "  leading and trailing  ",
        "\n\n  The answer is indented. \t\n",
        "\n",
        " ",
        system=" \n rules \n ",
    ),
    "template_words": turns(
        "Is user\nassistant a role? {{ bos_token }} {% if %}",
        "The word assistant\nand the word user stay text. {{ 1 + 1 }}",
        "assistant",
        "assistant",
    ),
    "ends_with_user": turns("Hello there.", "Hello.", "How are you?"),
    "same_answer_twice": turns("Hello", "Hello", "Hello", "Hello"),
}
THINKING_CONVERSATIONS = {
    "reasoning_field": [
        {"role": "user", "content": "What is two and three?"},
        {
            "role": "assistant",
            "reasoning_content": "\nThe sum is five.\n",
            "content": "The answer is five.",
        },
        {"role": "user", "content": "Is that right?"},
        {"role": "assistant", "reasoning_content": "Let me think.", "content": "It is."},
    ],
    "two_assistants_after_last_user": [
        {"role": "user", "content": "Write a function."},
        {"role": "assistant", "content": "<think>First a plan.</think>A plan."},
        {"role": "assistant", "content": "<think>Then the code.</think>\n\n\nfn add() {}"},
    ],
    "thinking_without_opening_tag": turns("And you?", "I think so.\n</think>\n\nYes, thank you."),
}


def train_tokenizer():
    """A byte-level BPE without a normaliser, pre-tokenised like GPT-2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        min_frequency=2,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    folder = HERE / "chat_tokenizer"
    shutil.rmtree(folder, ignore_errors=True)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        additional_special_tokens=[token for token in SPECIAL if token != "<|im_end|>"],
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
    fast.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def regions(template, tokenizer, messages):
    """Character spans of the generation blocks, found without transformers' own tracking.

    Each tag becomes an output of a private-use character; their places are the spans.
    """
    opening, closing = "\ue000", "\ue001"
    marked = template
    for tag, mark in (("endgeneration", closing), ("generation", opening)):
        for left, left_output in (("{%- ", "{{- "), ("{% ", "{{ ")):
            for right, right_output in ((" -%}", " -}}"), (" %}", " }}")):
                output = f"{left_output}'{mark}'{right_output}"
                marked = marked.replace(left + tag + right, output)
    text = tokenizer.apply_chat_template(messages, chat_template=marked, tokenize=False)
    spans, plain = [], ""
    for character in text:
        if character == opening:
            spans.append([len(plain), None])
        elif character == closing:
            spans[-1][1] = len(plain)
        else:
            plain += character
    return plain, spans


def overlapping(offsets, spans):
    """A token counts when it shares a character with a span."""
    return [
        int(any(max(begin, start) < min(end, stop) for start, stop in spans))
        for begin, end in offsets
    ]


def row(tokenizer, name, conversation, messages):
    template, mask_template, _, _ = TEMPLATES[name]
    rendered = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
    encoded = tokenizer.apply_chat_template(
        messages,
        chat_template=mask_template,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    ids, mask = encoded["input_ids"], encoded["assistant_masks"]
    # Plain and marked template must say the same, and two ways to the mask must agree.
    same = tokenizer(rendered, add_special_tokens=False, return_offsets_mapping=True)
    assert same["input_ids"] == ids, (name, conversation)
    text, spans = regions(mask_template, tokenizer, messages)
    assert text == rendered, (name, conversation, text, rendered)
    expected = overlapping(same["offset_mapping"], spans)
    assert expected == mask, (name, conversation, expected, mask)
    straddling = sum(
        begin < edge < end
        for begin, end in same["offset_mapping"]
        for span in spans
        for edge in span
    )
    return rendered, ids, mask, straddling


def main():
    tokenizer = train_tokenizer()
    rows, straddling = [], 0
    for name, (template, _, bos_token, eos_token) in TEMPLATES.items():
        tokenizer.bos_token, tokenizer.eos_token = bos_token, eos_token
        conversations = dict(CONVERSATIONS)
        if name.startswith("thinking"):
            conversations |= THINKING_CONVERSATIONS
        head = {
            "template": name,
            "bos_token": bos_token,
            "eos_token": eos_token,
            "add_generation_prompt": False,
        }
        for conversation, messages in conversations.items():
            rendered, ids, mask, crossed = row(tokenizer, name, conversation, messages)
            straddling += crossed
            rows.append(
                {"name": f"{name}/{conversation}"}
                | head
                | {"messages": messages, "rendered": rendered, "ids": ids, "mask": mask}
            )
        for conversation in ("ends_with_user", "system", "thinking"):
            # What an engine is given: everything up to the last user message, and the header.
            messages = conversations[conversation]
            while messages[-1]["role"] != "user":
                messages = messages[:-1]
            options = [{}] if not name.startswith("thinking") else [{}, {"enable_thinking": False}]
            for option in options:
                rendered = tokenizer.apply_chat_template(
                    messages,
                    chat_template=template,
                    tokenize=False,
                    add_generation_prompt=True,
                    **option,
                )
                suffix = "/no_thinking" if option else ""
                rows.append(
                    {"name": f"{name}/{conversation}/prompt{suffix}"}
                    | head
                    | {
                        "add_generation_prompt": True,
                        "variables": option,
                        "messages": messages,
                        "rendered": rendered,
                    }
                )
    templates = {
        name: {"source": source, "generation": source == marked, "mask_source": marked}
        for name, (source, marked, _, _) in TEMPLATES.items()
    }
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    header = json.dumps(templates, ensure_ascii=False, indent=1)
    text = f'{{"templates": {header},\n"rows": [\n{lines}\n]}}\n'
    assert json.loads(text)["rows"] == rows
    (HERE / "chat_masks.json").write_text(text)
    assert straddling > 0, "no token crosses the edge of a mask"
    masked = sum(sum(row.get("mask", [])) for row in rows)
    print(
        f"{len(rows)} rows, {masked} masked tokens, {straddling} across an edge,"
        f" vocabulary {len(tokenizer)}"
    )


if __name__ == "__main__":
    main()
