"""KEDA's external scaler: reports the load of each revision to KEDA, which scales."""
