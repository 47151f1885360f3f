"""The swarm over HTTP, in the form that existing clients speak: OpenAI's chat and text completions, and a page."""
