"""DIPModule and DIPEngine on DeepSpeed's pipeline engine: links, execution, initialize, shutdown."""
