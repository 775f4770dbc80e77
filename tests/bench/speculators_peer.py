"""Trains a drafter with the `speculators` library, to compare what other trainers make of the same tokens.

The model, its loss, its optimizers and the shift of its data are the library's own; the target's states come from
Transformers, as the library's files would hold them. Each step takes whole conversations of `--batch-tokens` tokens
or a few more, in `--rows` rows whose losses are averaged (on the CPU the library's attention is dense, so shorter rows cost less),
and the learning rate follows the library's linear schedule. The library saves the result.

    pip install speculators torch transformers
    python tests/bench/speculators_peer.py eagle3 TARGET OUT --conversations train.jsonl --steps 120 --layers 1 2 3

Prints a line of JSON at the end: tokens, steps, seconds (of the steps alone, states included) and tokens a second.
"""

import argparse
import json
import os
import random
import time
from types import SimpleNamespace

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from speculators.losses import resolve_loss_config
from speculators.models.dflash import DFlashDraftModel
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.models.eagle3.data import shift_batch
from speculators.train.cli import create_transformer_layer_config
from speculators.train.optimizers import build_optimizers
from transformers import AutoModelForCausalLM, AutoTokenizer, get_linear_schedule_with_warmup


def conversations(tokenizer, path, longest):
    """The token ids of each conversation and whether the assistant said them."""
    for line in open(path, encoding="utf-8"):
        messages, ids, said = json.loads(line)["messages"], [], []
        for turn, message in enumerate(messages):
            until = tokenizer.apply_chat_template(messages[: turn + 1], tokenize=True, return_dict=False)
            asked = len(until)
            if message["role"] == "assistant":
                before = messages[:turn]
                asked = len(
                    tokenizer.apply_chat_template(before, tokenize=True, add_generation_prompt=True, return_dict=False)
                )
            said += [place >= asked for place in range(len(ids), len(until))]
            ids = until
        if any(said[:longest]):
            yield ids[:longest], said[:longest]


def row_of(target, texts, layers, shift):
    """What a model's `forward` takes of some conversations, one after the other in a row."""
    parts = []
    for ids, said in texts:
        with torch.no_grad():
            kept = []
            hook = target.model.norm.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
            found = target.model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
            hook.remove()
            found = [*found[:-1], kept[0]]  # the last is after the final norm, where engines hand it out before
        part = {
            "input_ids": torch.tensor(ids),
            "hidden_states": torch.cat([found[layer][0] for layer in layers], -1),
            "verifier_last_hidden_states": kept[0][0],
            "loss_mask": torch.tensor(said, dtype=torch.long),
            "lengths": torch.tensor([len(ids)]),
            "position_ids": torch.arange(len(ids)),
        }
        parts.append(shift(part))
    row = {key: torch.cat([part[key] for part in parts])[None] for key in parts[0] if key != "lengths"}
    documents = [torch.full((int(part["lengths"][0]),), number) for number, part in enumerate(parts)]
    return row | {"document_ids": torch.cat(documents)[None]}


def untrained(given):
    """The library's drafter over the target's whole vocabulary."""
    layers = 1 if given.family == "eagle3" else given.draft_layers
    config = create_transformer_layer_config(
        given.target, layers, "llama" if given.family == "eagle3" else "qwen3", None, 2048, list(range(layers))
    )
    model = Eagle3DraftModel if given.family == "eagle3" else DFlashDraftModel
    return model.from_training_args(
        config,
        t2d=None,
        d2t=None,
        draft_vocab_size=config.vocab_size,
        verifier_name_or_path=os.path.abspath(given.target),
        target_layer_ids=given.layers,
        draft_attn_impl="eager",
        norm_before_residual=given.norm_before_residual,
        ttt_steps=given.draft_steps,
        block_size=given.block_size,
        mask_token_id=given.mask_token,
    ).float()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", choices=["eagle3", "dflash"])
    parser.add_argument("target")
    parser.add_argument("out")
    parser.add_argument("--conversations", required=True)
    parser.add_argument("--layers", type=int, nargs="+", required=True, help="whose states the drafter reads; 1 is what the first layer gives")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=4, help="into which the tokens of a step are packed")
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--all-tokens", action="store_true", help="also those that the assistant did not say count in the loss")
    parser.add_argument("--optimizer", default="muon", choices=["muon", "adamw"])
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--muon-lr", type=float)
    parser.add_argument("--draft-steps", type=int, default=5, help="EAGLE-3: steps of the unroll")
    parser.add_argument("--decay", type=float, default=1.0, help="EAGLE-3: weight of each step to the one before")
    parser.add_argument("--norm-before-residual", action="store_true", help="EAGLE-3")
    parser.add_argument("--draft-layers", type=int, default=2, help="DFlash")
    parser.add_argument("--block-size", type=int, default=8, help="DFlash")
    parser.add_argument("--anchors", type=int, default=32, help="DFlash: blocks of a row")
    parser.add_argument("--mask-token", type=int, default=0, help="DFlash")
    parser.add_argument("--loss", help="the library's default for the family unless given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    order = random.Random(given.seed)
    torch.set_num_threads(given.threads)

    tokenizer = AutoTokenizer.from_pretrained(given.target)
    target = AutoModelForCausalLM.from_pretrained(given.target, dtype=torch.float32).eval()
    model = untrained(given)
    is_eagle = given.family == "eagle3"
    loss = resolve_loss_config(given.loss or ("kl_div" if is_eagle else "ce"), "eager")
    if is_eagle:
        settings = {"ttt_steps": given.draft_steps, "ttt_step_loss_decay": given.decay, "loss_config": loss}
    else:
        settings = {"max_anchors": given.anchors, "loss_config": loss}
    optimizers = build_optimizers(
        model,
        SimpleNamespace(
            optimizer=given.optimizer,
            lr=given.lr,
            weight_decay=0.01,
            muon_lr=given.muon_lr or given.lr,
            muon_momentum=0.95,
            muon_weight_decay=0.1,
            muon_ns_steps=5,
            muon_adjust_lr_fn="match_rms_adamw",
        ),
    )
    schedules = [get_linear_schedule_with_warmup(each, given.steps // 100, given.steps) for each in optimizers]

    texts = list(conversations(tokenizer, given.conversations, given.max_length))
    if given.all_tokens:
        texts = [(ids, [True] * len(ids)) for ids, _ in texts]
    order.shuffle(texts)
    began, tokens, at = time.time(), 0, 0
    for step in range(given.steps):
        mean = 0.0
        for _ in range(given.rows):
            batch, size = [], 0
            while size < given.batch_tokens // given.rows:
                batch.append(texts[at % len(texts)])
                size, at = size + len(batch[-1][0]), at + 1
            row = row_of(target, batch, given.layers, shift_batch if is_eagle else lambda part: part)
            value = model(**row, **settings)[1] / given.rows
            value.backward()
            mean, tokens = mean + value.item(), tokens + size
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in [*optimizers, *schedules]:
            each.step()
        model.zero_grad(set_to_none=True)
        if step % 10 == 0:
            print(f"step {step} loss {mean:.4f} tokens/s {tokens / (time.time() - began):.0f}", flush=True)
    seconds = time.time() - began
    model.save_pretrained(given.out)
    said = {"tokens": tokens, "steps": given.steps, "seconds": round(seconds, 1)}
    print(json.dumps(said | {"tokens_per_second": round(tokens / seconds)}))


if __name__ == "__main__":
    main()
