"""The mathematics of mixture-of-experts language models, exact on every CPU."""
