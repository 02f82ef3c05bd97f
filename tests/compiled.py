"""Every way to compile a model or a part of it."""

import torch


def compiled_whole(model):
    return torch.compile(model, backend="eager")


def compiled_layer(model):
    model.model.layers[0] = torch.compile(model.model.layers[0], backend="eager")
    return model


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


def compiled_forward(model):
    model.forward = torch.compile(model.forward, backend="eager")
    return model
