//! From hidden rows to logprobs, losses and the gradient of the hidden rows, a chunk of positions at a time.
//!
//! Logits exist for one chunk only: their loss is differentiated at once down to the hidden rows, and the rows' gradient
//! is all that is kept.

use inference::model::Model;
use tch::{Kind, Tensor};

use crate::batch::LossTerm;
use crate::error::TrainError;
use crate::loss::{LossInputs, LossKind, LossOutputs};

/// What became of one term.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TermOutcome {
    /// log p of the token under the policy.
    pub(crate) policy_logprob: f64,
    /// Importance ratio before clipping; 1 where no behaviour logprob is known.
    pub(crate) ratio: f64,
    /// 1 where the ratio was clipped, else 0.
    pub(crate) clipped: f64,
    /// Entropy of the distribution that the token was predicted by, in nats.
    pub(crate) entropy: f64,
}

/// A term and the row of `hidden` that predicts it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedTerm {
    pub(crate) row: i64,
    /// Index into the mini-batch's terms.
    pub(crate) term: usize,
}

/// What [`head`] gives.
#[derive(Debug)]
pub(crate) struct HeadOutput {
    pub(crate) loss: f64,
    /// Outcome of each placed term, in their order.
    pub(crate) outcomes: Vec<TermOutcome>,
    /// The rows that predict something (`[n]`, int64) and their gradient (`[n, hidden]`); `None` without gradient.
    pub(crate) gradient: Option<(Tensor, Tensor)>,
}

/// Computes loss and outcomes of the terms of one piece, and the gradient of `hidden` `[rows, hidden]` if asked for.
/// `placed` is sorted by row and not empty; a chunk has at most `chunk` distinct rows.
pub(crate) fn head(
    model: &Model,
    hidden: &Tensor,
    placed: &[PlacedTerm],
    terms: &[LossTerm],
    kind: LossKind,
    chunk: i64,
    with_gradient: bool,
) -> Result<HeadOutput, TrainError> {
    let mut rows: Vec<i64> = placed.iter().map(|placed| placed.row).collect();
    rows.dedup();
    let row_index = Tensor::from_slice(&rows).to_device(hidden.device());
    let selected = hidden.detach().index_select(0, &row_index);
    let mut output = HeadOutput {
        loss: 0.0,
        outcomes: Vec::with_capacity(placed.len()),
        gradient: None,
    };
    let mut gradients = Vec::new();
    let mut rest = placed;
    for start in (0..rows.len() as i64).step_by(usize::try_from(chunk.max(1)).unwrap_or(usize::MAX)) {
        let n_rows = chunk.min(rows.len() as i64 - start);
        let chunk_rows = &rows[start as usize..(start + n_rows) as usize];
        let last_row = chunk_rows[chunk_rows.len() - 1];
        let (here, later) = rest.split_at(rest.partition_point(|placed| placed.row <= last_row));
        rest = later;
        // Its own memory: a leaf, whatever graph `hidden` hangs on.
        let leaf = selected
            .narrow(0, start, n_rows)
            .copy()
            .set_requires_grad(with_gradient);
        let outputs = chunk_loss(model, &leaf, chunk_rows, here, terms, kind)?;
        output.loss += outputs.loss.loss.double_value(&[]);
        output.outcomes.extend(outputs.outcomes);
        if with_gradient {
            outputs.loss.loss.f_backward()?;
            gradients.push(leaf.grad());
        }
    }
    if with_gradient {
        output.gradient = Some((row_index, Tensor::cat(&gradients, 0)));
    }
    Ok(output)
}

struct ChunkOutput {
    loss: LossOutputs,
    outcomes: Vec<TermOutcome>,
}

fn chunk_loss(
    model: &Model,
    hidden: &Tensor,
    rows: &[i64],
    placed: &[PlacedTerm],
    terms: &[LossTerm],
    kind: LossKind,
) -> Result<ChunkOutput, TrainError> {
    let device = hidden.device();
    let logprobs = model.logits(hidden).log_softmax(-1, None::<Kind>);
    let vocab_size = logprobs.size()[1];
    let entropy = tch::no_grad(|| -(logprobs.exp() * &logprobs).sum_dim_intlist(-1, false, None::<Kind>));
    let entropy = Vec::<f64>::try_from(entropy.to_kind(Kind::Double))?;
    let local: Vec<usize> = placed
        .iter()
        .map(|placed| rows.partition_point(|row| *row < placed.row))
        .collect();
    let flat: Vec<i64> = placed
        .iter()
        .zip(&local)
        .map(|(placed, &row)| row as i64 * vocab_size + i64::from(terms[placed.term].token_id))
        .collect();
    let policy_logprobs = logprobs
        .view([-1])
        .index_select(0, &Tensor::from_slice(&flat).to_device(device));
    let column = |value: fn(&LossTerm) -> f64| {
        let values: Vec<f64> = placed.iter().map(|placed| value(&terms[placed.term])).collect();
        Tensor::from_slice(&values)
            .to_kind(policy_logprobs.kind())
            .to_device(device)
    };
    let loss = kind.compute(&LossInputs {
        policy_logprobs: &policy_logprobs,
        behaviour_logprobs: &column(|term| term.behaviour_logprob),
        advantages: &column(|term| term.advantage),
        weights: &column(|term| term.weight),
    });
    let numbers = |tensor: &Tensor| Vec::<f64>::try_from(tensor.detach().to_kind(Kind::Double));
    let (policy, ratio, clipped) = (
        numbers(&policy_logprobs)?,
        numbers(&loss.ratio)?,
        numbers(&loss.clipped)?,
    );
    let outcomes = (0..placed.len())
        .map(|index| TermOutcome {
            policy_logprob: policy[index],
            ratio: ratio[index],
            clipped: clipped[index],
            entropy: entropy[local[index]],
        })
        .collect();
    Ok(ChunkOutput { loss, outcomes })
}
