"""The server with a model on a GPU: the same answers as on the CPU, from one process."""

import asyncio
from pathlib import Path

import httpx
import pytest
import torch

from covnmt.inference.model import Model
from covnmt.serve.settings import ServeSettings

from .server import serving

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: skipped")

# kernels are compiled when a shape is met for the first time
PATIENT = ServeSettings(rate=0, timeout=300)


def test_many_clients_get_their_own_answers(tiny_model: Path, lines: list[str]) -> None:
    translator = Model.load(tiny_model, device="cuda")
    expected = {each.source: each.text for each in translator.translate(lines)}
    texts = [line for line in lines for _ in range(10)]
    with serving({"tiny": tiny_model}, PATIENT, device="cuda") as running:
        assert len(running.models["tiny"].workers) == 1
        assert running.models["tiny"].properties.device == "cuda"

        async def ask_all() -> list[str]:
            async with httpx.AsyncClient(base_url=running.url, timeout=300) as client:

                async def ask(text: str) -> str:
                    answer = await client.post("/v1/translate", json={"text": text})
                    assert answer.status_code == 200, answer.text
                    [translation] = answer.json()["translations"]
                    assert [each["source"] for each in translation["sentences"]] == [text]
                    return str(translation["text"])

                return list(await asyncio.gather(*map(ask, texts)))

        answers = asyncio.run(ask_all())
    # batches of other sizes sum in another order: in bf16 a near tie may fall the other way
    agree = sum(answer == expected[text] for answer, text in zip(answers, texts, strict=True))
    assert agree >= 0.8 * len(texts)


def test_align_check_and_stream_work_on_a_gpu(tiny_model: Path, lines: list[str]) -> None:
    with serving({"tiny": tiny_model}, PATIENT, device="cuda") as running:
        body = {"pairs": [{"source": lines[0], "target": lines[1]}]}
        answer = httpx.post(f"{running.url}/v1/align", json=body, timeout=300)
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["alignments"][0]["tokens"]) == len(lines[1].split())
        checked = httpx.post(f"{running.url}/v1/check", json=body, timeout=300)
        assert checked.status_code == 200, checked.text
        assert checked.json()["checks"][0]["source_tokens"] == lines[0].split()
        stream = httpx.post(
            f"{running.url}/v1/translate/stream", json={"text": lines[:3]}, timeout=300
        )
        assert stream.text.count("event: sentence\n") == 3
        assert "event: done\n" in stream.text
