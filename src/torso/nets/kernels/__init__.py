"""Fused kernels of the stacked layers, in Triton; import a module of this package only where `torso.fast.is_fast`.

Maps are [G·B, C, H, W] with channels-last memory, client 0's samples first: for a client, a matrix of B·H·W pixels by C
channels. A pointwise convolution is one matrix product per client, and whatever goes per sample needs no kernel here.
"""
