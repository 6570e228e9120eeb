"""The screen of `supervisor top`. Only `app`, `screens` and `tables` import Textual."""
