"""Stage 2: windows are batched, forecast and planned; forecasts and plans are published."""
