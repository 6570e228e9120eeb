"""Dead letters: published to every configured sink."""
