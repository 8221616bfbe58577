#!/usr/bin/env python3
"""A checkpoint of ours as transformers sees it: it loads, its tokenizer agrees, and its greedy continuations equal those of a generation-server.

Usage: check_checkpoint.py CHECKPOINT GENERATION_SERVER_BINARY        (needs torch==2.7.1 transformers==4.56.2)
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

PROMPTS = ["7+5*3+4=", "0*9+8+1=", "3+7*2+5=", "9*9*9+9="]
NEW_TOKENS = 24


def ours(url, prompt):
    body = {"text": prompt, "sampling_params": {"max_new_tokens": NEW_TOKENS, "temperature": 0}, "return_logprob": True}
    request = urllib.request.Request(url + "/v1/generate", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    return json.loads(urllib.request.urlopen(request, timeout=30).read())


def main():
    folder, binary = sys.argv[1:3]
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception:
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(pathlib.Path(folder) / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
    model.eval()
    worst = 0.0
    with tempfile.TemporaryDirectory() as temporary:
        port_file = pathlib.Path(temporary) / "port"
        server = subprocess.Popen([binary, "--model", folder, "--port", "0", "--port-file", str(port_file)], stderr=subprocess.DEVNULL)
        try:
            for _ in range(200):
                if port_file.exists():
                    break
                time.sleep(0.05)
            url = f"http://127.0.0.1:{int(port_file.read_text())}"
            for prompt in PROMPTS:
                answer = ours(url, prompt)
                ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
                tokens = torch.tensor([ids + answer["output_ids"]])
                with torch.no_grad():
                    logprobs = torch.log_softmax(model(tokens).logits[0].double(), -1)
                for i, token in enumerate(answer["output_ids"]):
                    row = logprobs[len(ids) + i - 1]
                    mine = answer["meta_info"]["output_token_logprobs"][i][0]
                    worst = max(worst, abs(mine - row[token].item()))
                    assert row.max() - row[token] < 0.1, f"{prompt}: token {i} is {token}, transformers would take {row.argmax().item()}"
                print(f"{prompt} -> {tokenizer.decode(answer['output_ids'], skip_special_tokens=True)}")
        finally:
            server.terminate()
            server.wait(10)
    print(f"largest |log-probability difference|, ours in bf16 and theirs in fp32: {worst:.4f}")
    assert worst < 0.15, worst
    print("4 passed, 0 failed")


main()
