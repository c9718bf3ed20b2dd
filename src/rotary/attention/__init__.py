"""Attention that knows where its tokens are: functions first."""
