"""One module per op; see `kdtr.contract`."""
