"""A reference for the suffix tree that answers its queries by counting."""

from collections import Counter


class Counted:
    """Answers the suffix tree's queries by scanning every position of every text."""

    def __init__(self):
        self.texts = {}

    def grow(self, text, tokens):
        self.texts.setdefault(text, []).extend(tokens)

    def close(self, text):
        pass

    def remove(self, text):
        del self.texts[text]

    def count(self, string):
        return sum(
            text[place : place + len(string)] == list(string)
            for text in self.texts.values()
            for place in range(len(text) if string else 0)
        )

    def next_tokens(self, string):
        found = Counter()
        for text in self.texts.values():
            for place in range(len(text) - len(string)):
                if text[place : place + len(string)] == list(string):
                    found[text[place + len(string)]] += 1
        return found

    def longest(self, history, most):
        return max(
            length
            for length in range(min(most, len(history)) + 1)
            if length == 0 or self.next_tokens(history[-length:]).total() > 0
        )
