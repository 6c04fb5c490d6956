"""ds_dip: large multimodal models on DeepSpeed pipelines, with a schedule of its own for every batch."""
