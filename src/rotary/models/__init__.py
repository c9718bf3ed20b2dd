"""Models to train and to use: Hugging Face models in the full sense."""
