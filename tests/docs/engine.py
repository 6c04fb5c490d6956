import ds_dip

config = ds_dip.load_config("ds_config.json")
model = ds_dip.load_model("model_configs/quickstart.json")
data = ds_dip.DatasetReference("ds_dip.data.digits:Digits", {"samples": 2000})
partition, layers = ds_dip.partition_for(model, config, ranks=2), ds_dip.layer_factories(model)
module = ds_dip.DIPModule(model, partition, layers, ds_dip.token_cross_entropy)
engine, *_ = ds_dip.initialize(model=module, config=config, training_data=data)
steps, folder = 2, "checkpoints"
engine.train_batch()
