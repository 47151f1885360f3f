"""The demo model that ships with Swarm: the text it learns from, and the script that trains it.

`corpus` writes the text and knows which answer is right; `train` (needs the extra `train`: torch and
transformers) makes the checkpoint in `swarm/demo/model`. Nothing else in Swarm imports the trainer.
"""
