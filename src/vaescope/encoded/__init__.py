"""Samples with their posteriors and the decoder's derivatives, computed once and shared by all analyses."""

from vaescope.encoded.derivatives import DecoderDerivatives, differentiate
from vaescope.encoded.sample import EncodedSample, encode, encode_chunks, encode_sample

__all__ = ["DecoderDerivatives", "EncodedSample", "differentiate", "encode", "encode_chunks", "encode_sample"]
