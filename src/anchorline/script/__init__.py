"""Scripted replies: test models that say what a file tells them to, through the whole normal path."""
