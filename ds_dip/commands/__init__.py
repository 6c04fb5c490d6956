"""The subcommands of ``ds-dip``, one Click module each; ``ds_dip.cli`` loads them lazily."""
