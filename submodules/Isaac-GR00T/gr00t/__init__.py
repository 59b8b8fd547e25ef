"""A small vision-language-action model behind Isaac-GR00T's public interface."""
