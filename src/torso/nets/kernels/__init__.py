"""Fused kernels of the stacked layers, in Triton. Import a module of this package only if `torso.fast.is_fast`.

Maps are [G·B, C, H, W] with channels-last memory, client 0's samples first: for a client, a matrix of B·H·W pixels by C
channels. A pointwise convolution is one matrix product per client. Operations on single samples need no kernel here.

A tap is one of the K·K positions of a convolution's kernel. The slope is the gradient of a layer's output, which the
backward pass gets.
"""
