"""What can be converted, one file a layout: folders of files, tables, Hugging Face's folders, shards."""
