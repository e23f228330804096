"""Samples with their posteriors and the decoder's derivatives, computed once and shared by all analyses."""

from vaescope.encoded.derivatives import DecoderDerivatives as DecoderDerivatives
from vaescope.encoded.derivatives import differentiate as differentiate
from vaescope.encoded.sample import EncodedSample as EncodedSample
from vaescope.encoded.sample import encode as encode
from vaescope.encoded.sample import encode_chunks as encode_chunks
from vaescope.encoded.sample import encode_sample as encode_sample
