"""KEDA's external scaler: KEDA scales, and is told here how much is asked of each revision."""
