"""The nouns: what is asked for, what is seen, what it means. Pure values, standard library only."""
