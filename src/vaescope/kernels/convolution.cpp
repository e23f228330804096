// Convolutions with 4 x 4 kernels, stride 2 and padding 1, in bfloat16 with sums in float32 (AVX512-BF16).
//
// Both kernels relate a fine image (height x width, `fine` channels) to a coarse one of half its sides (`coarse`
// channels); channels are the last axis of every array. Weights have the shape (coarse, 4, 4, fine):
//
//   coarse[h, w, o]  <->  fine[2h + i - 1, 2w + j - 1, c]  by  weight[o, i, j, c]
//
// The instruction `dpbf16` multiplies 16 lanes of pairs of numbers and adds each pair of products to a float32 lane.
// So numbers that are summed over stand in pairs, and a block of sums stays in registers as long as possible.
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

namespace {

using std::int64_t;
using bf16 = std::uint16_t;
using Pair = std::uint32_t;  // two bfloat16 numbers, the first in the low half

constexpr int LANES = 16;
constexpr int KERNEL = 4;
constexpr int64_t CACHE = 512 << 10;  // bytes: half of the second-level cache of the processors this is for

template <class T>
std::unique_ptr<T[]> uninitialised(int64_t size) {
  return std::unique_ptr<T[]>(new T[size]);
}

template <class T>
std::unique_ptr<T[]> zeros(int64_t size) {
  return std::unique_ptr<T[]>(new T[size]());
}

inline Pair join(bf16 low, bf16 high) { return low | static_cast<Pair>(high) << 16; }
inline __m512bh load(const Pair* from) { return (__m512bh)_mm512_loadu_si512(from); }
inline __m512bh repeat(Pair pair) { return (__m512bh)_mm512_set1_epi32(pair); }
inline void store(bf16* to, __m512 sum, __mmask16 lanes = 0xffff) {
  _mm256_mask_storeu_epi16(to, lanes, (__m256i)_mm512_cvtneps_pbh(sum));
}

struct Sizes {
  int64_t images, height, width, fine, coarse;
  int64_t rows() const { return height / 2; }     // of a coarse image
  int64_t columns() const { return width / 2; }   // of a coarse image
  int64_t weights() const { return coarse * KERNEL * KERNEL * fine; }
};

// Gradient of the weights ---------------------------------------------------------------------------------------------
//
//   gradient[o, i, (j, c)] = sum over images, h, w of  coarse[h, w, o] fine[2h + i - 1, (2w + j - 1, c)]
//
// Pairs are neighbours in w. For one row and one w, the 4 * fine numbers (j, c) are contiguous in the fine image; they
// are divided into blocks of R. Lanes are coarse channels, in groups of 32.

constexpr int VECTORS = 2, GROUP = VECTORS * LANES;
constexpr int SLICES = 8;  // parts of a batch that are summed separately, so that sums do not depend on the threads

// One fine row, with a column of zeros before it: block by block, the pairs of every two coarse columns.
template <int R>
void pack_fine_row(const bf16* row, Pair* to, int64_t block_stride, int64_t pairs, int64_t channels) {
  for (int64_t block = 0; block < KERNEL * channels / R; ++block)
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const bf16 *low = row + 4 * pair * channels + block * R, *high = low + 2 * channels;
      Pair* out = to + block * block_stride + pair * R;
      for (int r = 0; r < R; ++r) out[r] = join(low[r], high[r]);
    }
}

// One coarse row: group by group, the pairs of every two columns; an odd last column is paired with zeros.
void pack_coarse_row(const bf16* row, Pair* to, int64_t group_stride, int64_t columns, int64_t channels) {
  for (int64_t group = 0; group < channels / GROUP; ++group)
    for (int64_t pair = 0; 2 * pair < columns; ++pair) {
      const bf16* low = row + 2 * pair * channels + group * GROUP;
      Pair* out = to + group * group_stride + pair * GROUP;
      const bool odd = 2 * pair + 1 == columns;
      for (int o = 0; o < GROUP; ++o) out[o] = join(low[o], odd ? 0 : low[o + channels]);
    }
}

template <int R>
inline void multiply(const Pair* coarse, const Pair* fine, int64_t pairs, __m512 (&sums)[R][VECTORS]) {
  for (int64_t pair = 0; pair < pairs; ++pair, coarse += GROUP, fine += R) {
    __m512bh left[VECTORS];
    for (int v = 0; v < VECTORS; ++v) left[v] = load(coarse + v * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const __m512bh right = repeat(fine[r]);
      for (int v = 0; v < VECTORS; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], left[v], right);
    }
  }
}

// The sum over images `begin` to `end`, in the order (block, i, group, r, lane), in chunks that fit the cache.
template <int R>
void add_images(const bf16* fine, const bf16* coarse, float* total, Sizes s, int64_t begin, int64_t end) {
  const int64_t rows = s.rows(), pairs = (s.columns() + 1) / 2, padded_width = (KERNEL * pairs + KERNEL) * s.fine;
  const int64_t fine_size = s.height * pairs * KERNEL * s.fine, coarse_size = rows * pairs * s.coarse;
  const int64_t fitting = CACHE / static_cast<int64_t>(sizeof(Pair)) / (fine_size + coarse_size);
  const int64_t chunk = std::max<int64_t>(1, std::min(end - begin, fitting));
  auto fine_pairs = uninitialised<Pair>(chunk * fine_size), coarse_pairs = uninitialised<Pair>(chunk * coarse_size);
  auto padded = zeros<bf16>(padded_width);
  std::fill_n(total, s.weights(), 0.0f);
  for (int64_t start = begin; start < end; start += chunk) {
    const int64_t count = std::min(end - start, chunk);
    const int64_t block_stride = count * s.height * pairs * R, group_stride = count * rows * pairs * GROUP;
    for (int64_t n = 0; n < count; ++n) {
      for (int64_t y = 0; y < s.height; ++y) {  // even rows first, then odd ones: every second row is used in turn
        const int64_t place = (n * 2 + y % 2) * rows + y / 2, width = s.width * s.fine;
        std::copy_n(fine + ((start + n) * s.height + y) * width, width, padded.get() + s.fine);
        pack_fine_row<R>(padded.get(), fine_pairs.get() + place * pairs * R, block_stride, pairs, s.fine);
      }
      for (int64_t h = 0; h < rows; ++h)
        pack_coarse_row(coarse + ((start + n) * rows + h) * s.columns() * s.coarse,
                        coarse_pairs.get() + (n * rows + h) * pairs * GROUP, group_stride, s.columns(), s.coarse);
    }
    float* to = total;
    for (int64_t block = 0; block < KERNEL * s.fine / R; ++block)
      for (int i = 0; i < KERNEL; ++i) {
        // coarse row h meets fine row 2h + i - 1: for i = 0 from h = 1 on, for i = 3 up to the last but one
        const int64_t first = i == 0, count_rows = rows - (i == 0 || i == 3);
        const int64_t fine_row = (i % 2 == 0 ? rows : 0) + (i == 3);
        for (int64_t group = 0; group < s.coarse / GROUP; ++group, to += R * GROUP) {
          __m512 sums[R][VECTORS];
          for (int r = 0; r < R; ++r)
            for (int v = 0; v < VECTORS; ++v) sums[r][v] = _mm512_loadu_ps(to + r * GROUP + v * LANES);
          for (int64_t n = 0; n < count; ++n)
            multiply<R>(coarse_pairs.get() + group * group_stride + (n * rows + first) * pairs * GROUP,
                        fine_pairs.get() + block * block_stride + (n * s.height + fine_row) * pairs * R,
                        count_rows * pairs, sums);
          for (int r = 0; r < R; ++r)
            for (int v = 0; v < VECTORS; ++v) _mm512_storeu_ps(to + r * GROUP + v * LANES, sums[r][v]);
        }
      }
  }
}

template <int R>
void weight_gradient(const bf16* fine, const bf16* coarse, float* gradient, Sizes s, int threads) {
  const int64_t groups = s.coarse / GROUP, row = KERNEL * s.fine, slices = std::min<int64_t>(SLICES, s.images);
  auto totals = uninitialised<float>(slices * s.weights());
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (int64_t t = 0; t < slices; ++t)
      add_images<R>(fine, coarse, totals.get() + t * s.weights(), s, s.images * t / slices,
                    s.images * (t + 1) / slices);
#pragma omp for schedule(static)
    for (int64_t block = 0; block < groups * KERNEL * row / R; ++block) {  // (block, i, group), as in add_images
      float sums[R * GROUP] = {};
      for (int64_t t = 0; t < slices; ++t)
        for (int k = 0; k < R * GROUP; ++k) sums[k] += totals[t * s.weights() + block * R * GROUP + k];
      const int64_t group = block % groups, i = block / groups % KERNEL, first = block / groups / KERNEL * R;
      for (int o = 0; o < GROUP; ++o)
        for (int r = 0; r < R; ++r)
          gradient[((group * GROUP + o) * KERNEL + i) * row + first + r] = sums[r * GROUP + o];
    }
  }
}

// From coarse to fine: the transposed convolution, and the gradient of a convolution with respect to its input --------
//
//   fine[2h + p, 2w + q, c] = sum over a, b in {0, 1} and o of  coarse[h - 1 + p + a, w - 1 + q + b, o]
//                                                              weight[o, 3 - p - 2a, 3 - q - 2b, c]
//
// Pairs are neighbours in o, so that a pair of the coarse image is one number in memory. Lanes are fine channels.

using PackWeights = void (*)(const bf16* weight, Pair* to, Sizes s);
using FillRow = void (*)(const Pair* coarse, const Pair* weights, bf16* fine, Sizes s, int p);

// Coarse images have a border of zeros; `coarse` points to row h - 1, and this many pairs lie between its rows.
int64_t padded_row(Sizes s) { return (s.columns() + 2) * s.coarse / 2; }

void pack_weights(const bf16* weight, Pair* to, Sizes s) {  // (p, q, a, b, o / 2, c)
  for (int index = 0; index < 16; ++index) {
    const int p = index >> 3, q = index >> 2 & 1, a = index >> 1 & 1, b = index & 1;
    for (int64_t o = 0; o < s.coarse; o += 2) {
      const bf16* low = weight + ((o * KERNEL + 3 - p - 2 * a) * KERNEL + 3 - q - 2 * b) * s.fine;
      const bf16* high = low + KERNEL * KERNEL * s.fine;
      for (int64_t c = 0; c < s.fine; ++c) *to++ = join(low[c], high[c]);
    }
  }
}

// R columns and V vectors of channels at a time.
template <int R, int V>
void fill_row(const Pair* coarse, const Pair* weights, bf16* fine, Sizes s, int p) {
  const int64_t half = s.coarse / 2;
  for (int64_t channel = 0; channel < s.fine; channel += V * LANES)
    for (int q = 0; q < 2; ++q)
      for (int64_t w = 0; w < s.columns(); w += R) {
        __m512 sums[R][V];
        for (auto& row : sums) std::fill_n(row, V, _mm512_setzero_ps());
        for (int a = 0; a < 2; ++a)
          for (int b = 0; b < 2; ++b) {
            const Pair* from = coarse + (p + a) * padded_row(s) + (w + q + b) * half;
            const Pair* weight = weights + (p * 8 + q * 4 + a * 2 + b) * half * s.fine + channel;
            for (int64_t o = 0; o < half; ++o, weight += s.fine) {
              __m512bh right[V];
              for (int v = 0; v < V; ++v) right[v] = load(weight + v * LANES);
#pragma GCC unroll 8
              for (int r = 0; r < R; ++r) {
                const __m512bh left = repeat(from[r * half + o]);
                for (int v = 0; v < V; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], left, right[v]);
              }
            }
          }
        for (int r = 0; r < R; ++r)
          for (int v = 0; v < V; ++v) store(fine + (2 * (w + r) + q) * s.fine + channel + v * LANES, sums[r][v]);
      }
}

// With up to four fine channels, lanes are the channels of four fine columns 2w + q, q from 0 to 3, which need four
// coarse columns w - 1 + b, b from 0 to 3, with weight[o, 3 - p - 2a, q + 3 - 2b, c] where that exists.
void pack_few_weights(const bf16* weight, Pair* to, Sizes s) {  // (p, a, b, o / 2, lane)
  for (int index = 0; index < 16; ++index) {
    const int p = index >> 3, a = index >> 2 & 1, b = index & 3;
    for (int64_t o = 0; o < s.coarse; o += 2)
      for (int lane = 0; lane < LANES; ++lane) {
        const int64_t j = lane / s.fine + 3 - 2 * b;
        const bool exists = lane < KERNEL * s.fine && 0 <= j && j < KERNEL;
        const int64_t low = ((o * KERNEL + 3 - p - 2 * a) * KERNEL + j) * s.fine + lane % s.fine;
        *to++ = exists ? join(weight[low], weight[low + KERNEL * KERNEL * s.fine]) : 0;
      }
  }
}

// R times four fine columns at a time.
template <int R>
void fill_row_of_few(const Pair* coarse, const Pair* weights, bf16* fine, Sizes s, int p) {
  const int64_t half = s.coarse / 2;
  const auto used = static_cast<__mmask16>((1u << KERNEL * s.fine) - 1);
  for (int64_t w = 0; w < s.columns(); w += 2 * R) {
    __m512 sums[R];
    std::fill_n(sums, R, _mm512_setzero_ps());
    for (int a = 0; a < 2; ++a)
      for (int b = 0; b < 4; ++b) {
        const Pair* from = coarse + (p + a) * padded_row(s) + (w + b) * half;
        const Pair* weight = weights + (p * 8 + a * 4 + b) * half * LANES;
        for (int64_t o = 0; o < half; ++o, weight += LANES) {
          const __m512bh right = load(weight);
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) sums[r] = _mm512_dpbf16_ps(sums[r], repeat(from[2 * r * half + o]), right);
        }
      }
    for (int r = 0; r < R; ++r) store(fine + 2 * (w + 2 * r) * s.fine, sums[r], used);
  }
}

FillRow fastest_fill(Sizes s) {
  const int64_t columns = s.columns();
  if (s.fine <= 4)
    return columns % 32 == 0   ? fill_row_of_few<16>
           : columns % 16 == 0 ? fill_row_of_few<8>
           : columns % 8 == 0  ? fill_row_of_few<4>
                               : fill_row_of_few<1>;
  return columns % 8 == 0   ? fill_row<8, 2>
         : columns % 4 == 0 ? (s.fine % 64 == 0 ? fill_row<4, 4> : fill_row<4, 2>)
                            : fill_row<1, 2>;
}

}  // namespace

// The caller sees to it that arrays are contiguous and that sizes fit: `coarse` a multiple of 32, `fine` at most 4 or a
// multiple of 32, and with at most 4 an even number of coarse columns.
extern "C" {

void vaescope_weight_gradient(const bf16* fine, const bf16* coarse, float* gradient, int64_t images, int64_t height,
                              int64_t width, int64_t fine_channels, int64_t coarse_channels, int threads) {
  const Sizes s{images, height, width, fine_channels, coarse_channels};
  const auto run = s.fine == 3 ? weight_gradient<12> : s.fine % 2 == 0 ? weight_gradient<8> : weight_gradient<4>;
  run(fine, coarse, gradient, s, threads);
}

void vaescope_upsample(const bf16* coarse, const bf16* weight, bf16* fine, int64_t images, int64_t height,
                       int64_t width, int64_t fine_channels, int64_t coarse_channels, int threads) {
  const Sizes s{images, height, width, fine_channels, coarse_channels};
  const int64_t row = s.columns() * s.coarse;  // numbers of a coarse row
  const PackWeights pack = s.fine <= 4 ? pack_few_weights : pack_weights;
  const FillRow fill = fastest_fill(s);
  auto packed = uninitialised<Pair>(16 * s.coarse / 2 * std::max<int64_t>(s.fine, LANES));
  pack(weight, packed.get(), s);
#pragma omp parallel num_threads(threads)
  {
    auto padded = zeros<Pair>((s.rows() + 2) * padded_row(s));
#pragma omp for schedule(static)
    for (int64_t n = 0; n < s.images; ++n) {
      for (int64_t h = 0; h < s.rows(); ++h)
        std::memcpy(padded.get() + (h + 1) * padded_row(s) + s.coarse / 2, coarse + (n * s.rows() + h) * row,
                    row * sizeof(bf16));
      for (int p = 0; p < 2; ++p)  // rows of one parity use the same half of the weights
        for (int64_t h = 0; h < s.rows(); ++h)
          fill(padded.get() + h * padded_row(s), packed.get(), fine + (n * s.height + 2 * h + p) * s.width * s.fine, s,
               p);
    }
  }
}

}  // extern "C"
