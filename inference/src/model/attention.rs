//! The part of the forward pass that knows which rows belong together.

use tch::Tensor;

/// Attention over the rows of a batch. The engine attends to its paged KV cache, the trainer to a token tree.
pub trait Attention {
    /// Attends in one layer.
    ///
    /// `q` is `[tokens, n_heads, head_dim]`, `k` and `v` are `[tokens, n_kv_heads, head_dim]`; `q` and `k` are rotated.
    /// They are views into larger tensors: their last dimension is dense, their rows aren't. Query head `h` reads
    /// key-value head `h / (n_heads / n_kv_heads)`. Returns `[tokens, n_heads · head_dim]`.
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor;
}

/// One sequence from its first token on, every token attending to itself and those before. Differentiable.
#[derive(Debug, Clone, Copy, Default)]
pub struct CausalAttention;

impl Attention for CausalAttention {
    fn attend(&mut self, _layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        let (tokens, n_heads, head_dim) = q.size3().expect("q has three dimensions");
        let heads_first = |rows: &Tensor| rows.transpose(0, 1).unsqueeze(0);
        let grouped = n_heads != k.size()[1];
        let mixed = Tensor::scaled_dot_product_attention(
            &heads_first(q),
            &heads_first(k),
            &heads_first(v),
            None::<&Tensor>,
            0.0,
            true,
            None,
            grouped,
        );
        mixed
            .squeeze_dim(0)
            .transpose(0, 1)
            .reshape([tokens, n_heads * head_dim])
    }
}
