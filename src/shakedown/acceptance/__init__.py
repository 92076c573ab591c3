"""What acceptance to expect of a drafter, and how surely a rate is known. Numbers in, numbers out."""
