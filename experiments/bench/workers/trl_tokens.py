"""TRL's GRPOTrainer on a GPT-2 of the same sizes: generation, and the rest of a training step."""

# It runs in an environment of its own, so a type checker finds none of it here.
# pyright: reportMissingImports=false

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from typing import Any

import decoding

END = "end"


def save_model(case: dict[str, Any], folder: str) -> None:
    """Write a GPT-2 with random weights, and a tokenizer of one word for each token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    last = case["vocabulary"] - 1
    words = {str(i): i for i in range(last)} | {END: last}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, padding_side="left"
    ).save_pretrained(folder)
    config = GPT2Config(
        vocab_size=case["vocabulary"],
        n_positions=case["prompt_length"] + case["answer_length"],
        n_embd=case["width"],
        n_layer=case["layers"],
        n_head=case["heads"],
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=last,
        eos_token_id=last,
        pad_token_id=last,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)


def fraction_of_zeros(completions: list[str], **_: Any) -> list[float]:
    return [text.split().count("0") / len(text.split()) for text in completions]


def prepare(case: dict[str, Any], seed: int) -> decoding.Turn:
    threads = str(len(os.sched_getaffinity(0)))
    os.environ |= {"OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(int(threads))
    folder = tempfile.mkdtemp()
    save_model(case, folder)
    draw = random.Random(seed)
    text = lambda: " ".join(
        str(draw.randrange(case["vocabulary"] - 1)) for _ in range(case["prompt_length"])
    )
    prompts = Dataset.from_dict({"prompt": [text() for _ in range(case["prompts"] * 64)]})
    length = case["answer_length"]
    arguments = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=case["prompts"] * case["answers"],
        num_generations=case["answers"],
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_iterations=1,
        max_completion_length=length,
        generation_kwargs={"min_new_tokens": length},  # END is suppressed before
        beta=case["kl_weight"],
        loss_type="grpo",
        learning_rate=1e-6,
        max_steps=1_000_000,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=seed,
    )
    asked, done = threading.Semaphore(0), threading.Semaphore(0)
    seconds: dict[str, float] = {}
    errors: list[BaseException] = []

    class Clock(TrainerCallback):
        """Let the trainer take one step whenever a turn is asked for."""

        def on_step_end(self, *_: Any, **__: Any) -> None:
            done.release()
            asked.acquire()

    trainer = GRPOTrainer(
        model=folder,
        reward_funcs=fraction_of_zeros,
        args=arguments,
        train_dataset=prompts,
        callbacks=[Clock()],
    )
    generate = trainer.model.generate

    def time_generation(*positional: Any, **options: Any) -> Any:
        clock = time.perf_counter()
        found = generate(*positional, **options)
        seconds["generate"] = time.perf_counter() - clock
        written = (found if torch.is_tensor(found) else found.sequences).shape
        whole = (case["prompts"] * case["answers"], case["prompt_length"] + length)
        assert tuple(written) == whole, f"{tuple(written)} was generated, not {whole}"
        return found

    trainer.model.generate = time_generation

    def train() -> None:
        asked.acquire()
        try:
            trainer.train()
        except BaseException as error:
            errors.append(error)
            done.release()

    threading.Thread(target=train, daemon=True).start()

    def turn() -> tuple[float, float]:
        clock = time.perf_counter()
        asked.release()
        done.acquire()
        whole = time.perf_counter() - clock
        if errors:
            raise errors[0]
        return seconds["generate"], whole - seconds["generate"]

    return turn


if __name__ == "__main__":
    decoding.main(prepare)
