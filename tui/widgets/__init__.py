"""The parts of the screen; each translates between Textual and a module that knows no widgets."""
