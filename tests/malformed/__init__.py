"""Damaged and hostile KDTR files, for every reader."""
