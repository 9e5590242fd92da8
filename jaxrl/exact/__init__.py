"""Exact solutions of finite environments: dynamic programming, occupancies, policy gradients."""
