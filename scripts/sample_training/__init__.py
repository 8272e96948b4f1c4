"""Parts of ``scripts/train_sample.py``: how the sample video model under ``samples/wan-emoji`` is made.

One module a job: ``vocabulary`` (words and captions), ``sprites`` (the pictures and where they come from), ``render``
(clips composed from them), ``models`` (the three networks), ``autoencoder`` and ``denoiser`` (the two training stages),
``checkpoints``, ``pictures`` (curves and contact sheets) and ``export`` (the pipeline folder).
"""
