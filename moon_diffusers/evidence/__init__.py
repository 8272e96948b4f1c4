"""Evidence: code objects, references and peers; knows nothing of diffusers."""
