"""The steps of a poll: which rows of a page are new, and what must be remembered of them."""
