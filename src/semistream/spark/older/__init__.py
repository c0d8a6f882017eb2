"""What versions of PySpark before the newest lack, made of what they have; chosen by `semistream.spark.features`."""
