"""Speed and memory, measured in fresh processes; profiles of a few steps."""
