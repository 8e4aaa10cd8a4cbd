"""Steps of the model: their input tensors, CUDA graphs, and the one that runs ahead."""
