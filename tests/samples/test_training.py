"""The sample model's training script: every stage at toy size, and the arithmetic it must share with the pipeline."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from sample_training import autoencoder, models, sprites, vocabulary, whole_clip  # noqa: E402
from sample_training.render import render  # noqa: E402
from sample_training.schedule import Schedule  # noqa: E402


def test_the_dry_run_trains_is_cut_resumes_and_exports(tmp_path):
    script = ROOT / "scripts" / "train_sample.py"
    done = subprocess.run(
        [sys.executable, script, "dry-run", "--output", tmp_path], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "dry run passed" in done.stdout
    for name in ("losses.png", "contact-sheet.png", "reconstructions.png", "pipeline/model_index.json"):
        assert (tmp_path / name).stat().st_size > 0


def test_folded_padding_gives_what_the_pipeline_computes():
    """Training stands one padding token for the hundreds that WanPipeline adds; the denoiser must not notice."""
    torch.manual_seed(0)
    shape = models.Shape(num_layers=1, num_heads=1, ffn_dim=64, text_dim=16, text_layers=1)
    transformer, encoder = models.build_transformer(shape), models.build_text_encoder(shape)
    for parameter in transformer.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
    ids = models.token_ids(["a cat on a blue background", ""], shape.text_tokens)
    with torch.no_grad():
        short = models.encode_text(encoder, ids)
        padding = short.new_zeros(2, models.PIPELINE_TEXT_LENGTH - shape.text_tokens, shape.text_dim)
        noise, sigma = torch.randn(2, *shape.latent_shape), torch.tensor([500.0, 900.0])
        expected = transformer(noise, sigma, torch.cat([short, padding], 1), return_dict=False)[0]
        unpadded = transformer(noise, sigma, short, return_dict=False)[0]
        models.use_training_attention(transformer, shape.text_tokens)
        folded = transformer(noise, sigma, short, return_dict=False)[0]
    assert (folded - expected).norm() / expected.norm() < 1e-5
    assert (unpadded - expected).norm() / expected.norm() > 1e-3  # the padding does matter


def test_whole_clip_autoencoder_equals_the_chunked_one():
    torch.manual_seed(0)
    model = models.build_autoencoder(models.TINY)
    clip = torch.randn(1, 3, 13, 32, 32)
    with torch.no_grad():
        posterior = model.encode(clip).latent_dist
        mean, log_variance = whole_clip.encode(model, clip)
        torch.testing.assert_close(mean, posterior.mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(log_variance, posterior.logvar, rtol=1e-4, atol=1e-5)
        decoded = whole_clip.decode(model, mean).clamp(-1, 1)
        torch.testing.assert_close(decoded, model.decode(mean).sample, rtol=1e-4, atol=1e-5)


def test_token_ids_are_the_tokenizers():
    prompts = ["a small unicorn on a gray background spinning", "", "x" * 100]
    expected = models.build_tokenizer()(
        prompts, padding="max_length", max_length=64, truncation=True, return_tensors="pt"
    ).input_ids
    assert torch.equal(models.token_ids(prompts, 64), expected)


def test_scenes_repeat_by_seed_and_leave_out_what_is_held_out():
    subjects = len(vocabulary.SUBJECT_NAMES)
    first = autoencoder.scenes_for(5, 400, subjects, seed=1)
    assert first == autoencoder.scenes_for(5, 400, subjects, seed=1)
    assert first != autoencoder.scenes_for(6, 400, subjects, seed=1)
    assert all(vocabulary.seen_in_training(scene) for scene in first)
    held_out = [vocabulary.Scene(s, background=b) for s in range(subjects) for b in range(1, 10)]
    assert 20 < sum(not vocabulary.seen_in_training(scene) for scene in held_out) < 120
    assert max(len(vocabulary.caption(scene)) for scene in first) < models.Shape().text_tokens


def test_stage_1_goes_on_where_it_was_cut():
    """Two steps, a cut, two more: weights, optimizer and step all go on."""
    pictures = sprites.drawn(3)

    def steps(count, state, rate=0.01):
        networks = models.Networks.build(models.TINY, torch.device("cpu"), 0)
        pool = autoencoder.render_pool(networks, pictures, 4, 4, 0)
        plan = Schedule(rate, steps=count, minutes=60, warmup=1, decay_from=1.0)
        kept = {}
        torch.manual_seed(state["step"] if state else 0)
        for _ in autoencoder.train(networks, pool, plan, 2, 0, state, kept.update):
            pass
        return kept

    cut = steps(2, None)
    assert cut["step"] == 2
    resumed = steps(2, cut)
    assert resumed["step"] == 4
    restarted = steps(2, None)
    name = next(iter(cut["weights"]))
    assert torch.equal(restarted["weights"][name], cut["weights"][name])
    assert not torch.equal(resumed["weights"][name], cut["weights"][name])
    assert all(entry["step"] == 4 for entry in resumed["optimizer"]["state"].values())


def test_the_prompts_are_seen_and_unseen_as_the_card_says():
    from sample_training.export import SEEN, UNSEEN

    assert all(vocabulary.seen_in_training(entry) for entry in SEEN)
    assert not any(vocabulary.seen_in_training(entry) for entry in UNSEEN)


@pytest.mark.parametrize("motion", ["moving left", "moving right", "moving up", "moving down"])
def test_movement_goes_where_the_caption_says(motion):
    pictures = sprites.drawn(1, frames=1)
    scene = vocabulary.Scene(0, background=1, size=1, motion=vocabulary.MOTIONS.index(motion))
    clip = render(pictures, [scene], frames=5, height=32, width=32, seed=3)[0]
    shown = (clip - clip[:, :1, :1, :1]).abs().sum(0)  # away from the background colour
    axis = torch.arange(32.0)
    weights = shown.sum(1) if motion.split()[1] in ("left", "right") else shown.sum(2)
    centre = (weights * axis).sum(-1) / weights.sum(-1)
    step = centre.diff()
    assert (step < -1).all() if motion.split()[1] in ("left", "up") else (step > 1).all()


def test_learning_rate_warms_up_holds_and_decays_over_two_calls():
    first = Schedule(1.0, steps=100, minutes=60, begin=0.0, end=0.5, warmup=10)
    second = Schedule(1.0, steps=100, minutes=60, begin=0.5, end=1.0, warmup=10)
    assert first.learning_rate(0) == pytest.approx(0.1)
    assert first.learning_rate(50) == pytest.approx(1.0)
    assert second.learning_rate(50) == pytest.approx(0.5)
    assert second.learning_rate(100) == 0.0
    assert second.done(100) and not second.done(99)
