"""Archives of images and captions, read member by member as a stream; nothing is extracted as an archive says."""
