"""What passes between this machine and the Hugging Face Hub: which files, where they go, whether they arrived whole."""
