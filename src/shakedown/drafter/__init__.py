"""The EAGLE-3 drafter of a model, from samples to a directory that serves: the only room that knows torch.

Nothing outside it imports torch, and its jobs import it only when they run.
"""
