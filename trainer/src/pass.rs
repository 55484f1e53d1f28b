//! Forward and backward of a mini-batch over its prefix forest.
//!
//! The result equals, to rounding, that of running every sequence alone: the loss, each term's logprob, and the
//! gradient that [`run`] leaves in the adapter's parameters. How the forest is cut is [`crate::pieces`]' matter.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use inference::model::{AdapterRows, LoraAdapter, Model};
use tch::{Kind, Tensor};

use crate::attention::{ForestAttention, KeyValue, Leaves, PieceLayout};
use crate::batch::MiniBatch;
use crate::error::TrainError;
use crate::forest::Forest;
use crate::logprobs::{HeadOutput, PlacedTerm, TermOutcome, head};
use crate::loss::LossKind;
use crate::pieces::Pieces;

/// How a mini-batch is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassSettings<'a> {
    pub(crate) loss: LossKind,
    /// Distinct tokens of a piece.
    pub(crate) micro_batch_tokens: usize,
    /// Positions whose logits are held at once.
    pub(crate) logits_chunk: i64,
    /// Off: loss and outcomes only.
    pub(crate) with_gradient: bool,
    /// Raised: end as soon as may be.
    pub(crate) interrupt: &'a AtomicBool,
}

/// What a pass gives, beside the gradients in the adapter's parameters.
#[derive(Debug, Default)]
pub(crate) struct PassOutput {
    pub(crate) loss: f64,
    /// Outcome of each of the mini-batch's terms, in their order.
    pub(crate) outcomes: Vec<TermOutcome>,
    /// Tokens that ran through the model.
    pub(crate) tokens_distinct: usize,
}

/// Runs `batch` through `model` with `adapter` (`None`: the base model) and adds the loss's gradient to the adapter's
/// parameters.
pub(crate) fn run(
    model: &Model,
    adapter: Option<&LoraAdapter>,
    batch: &MiniBatch,
    settings: PassSettings<'_>,
) -> Result<PassOutput, TrainError> {
    let vocab_size = model.config().vocab_size as usize;
    let targets = batch.terms.iter().map(|term| &term.token_id);
    if let Some(&token_id) = batch
        .sequences
        .iter()
        .flatten()
        .chain(targets)
        .find(|&&id| id as usize >= vocab_size)
    {
        return Err(TrainError::TokenOutOfRange { token_id, vocab_size });
    }
    let forest = Forest::new(&batch.sequences);
    let pieces = Pieces::new(&forest, settings.micro_batch_tokens);
    // Where the terms are predicted: they are looked up once, then taken by the piece that holds them.
    let mut placed = vec![Vec::new(); forest.segments().len()];
    for (index, term) in batch.terms.iter().enumerate() {
        if let Some((segment, offset)) = term
            .position
            .checked_sub(1)
            .and_then(|at| forest.locate(term.sequence, at))
        {
            placed[segment].push((offset, index));
        }
    }
    let mut pass = Pass {
        model,
        adapter,
        batch,
        settings,
        forest: &forest,
        pieces: &pieces,
        placed,
        leaves: Leaves::new(),
        output: PassOutput {
            outcomes: vec![TermOutcome::default(); batch.terms.len()],
            ..PassOutput::default()
        },
    };
    for &root in &pieces.roots {
        if settings.with_gradient {
            pass.run_piece(root)?;
        } else {
            tch::no_grad(|| pass.run_piece(root))?;
        }
    }
    Ok(pass.output)
}

struct Pass<'a> {
    model: &'a Model,
    adapter: Option<&'a LoraAdapter>,
    batch: &'a MiniBatch,
    settings: PassSettings<'a>,
    forest: &'a Forest,
    pieces: &'a Pieces,
    /// For each segment, the terms predicted in it: (offset, term).
    placed: Vec<Vec<(usize, usize)>>,
    /// Keys and values of the pieces above the running one.
    leaves: Leaves,
    output: PassOutput,
}

impl Pass<'_> {
    /// Asked between the long calls into the tensor library, which can't be left.
    fn check_interrupt(&self) -> Result<(), TrainError> {
        match self.settings.interrupt.load(Ordering::Relaxed) {
            true => Err(TrainError::Interrupted),
            false => Ok(()),
        }
    }

    fn run_piece(&mut self, index: usize) -> Result<(), TrainError> {
        self.check_interrupt()?;
        let piece = &self.pieces.pieces[index];
        let device = self.model.device();
        let layout = PieceLayout::new(self.forest, &piece.segments, device, self.model.kind());
        let keep = self.segments_below_attend_to(index);
        let (token_ids, positions) = layout.inputs(self.forest, device);
        self.output.tokens_distinct += token_ids.numel();
        // Fused anew for each piece: its graph goes with the piece's.
        let fused = self.adapter.map(|adapter| adapter.fuse(self.model.kind()));
        let rows = fused.as_ref().map_or(AdapterRows::Base, AdapterRows::All);
        let mut attention = ForestAttention::new(&layout, &self.leaves, &keep);
        let hidden = self.model.forward(&token_ids, &positions, &rows, &mut attention);
        let kept = attention.into_kept();
        let gradient = self.run_head(&hidden, &layout, &piece.segments)?;
        // What the pieces below see of this one: leaves that collect the gradient of all of them.
        for (&segment, layers) in &kept {
            let leaf = |tensor: &Tensor| tensor.detach().set_requires_grad(self.settings.with_gradient);
            let layers = layers
                .iter()
                .map(|layer| KeyValue {
                    key: leaf(&layer.key),
                    value: leaf(&layer.value),
                })
                .collect();
            self.leaves.insert(segment, layers);
        }
        for &child in &piece.children {
            self.run_piece(child)?;
        }
        // One backward pass for everything that reached this piece: its own terms through the hidden rows, the pieces
        // below through keys and values. d(sum x·g)/dx is g.
        let mut parts: Vec<Tensor> = Vec::new();
        let mut add = |tensor: &Tensor, gradient: Tensor| {
            if gradient.defined() {
                parts.push((tensor * gradient).sum(Kind::Float));
            }
        };
        if let Some((rows, gradient)) = gradient {
            add(&hidden.index_select(0, &rows), gradient);
        }
        for (segment, layers) in kept {
            let Some(leaves) = self.leaves.remove(&segment) else {
                continue;
            };
            for (made, leaf) in layers.iter().zip(&leaves) {
                add(&made.key, leaf.key.grad());
                add(&made.value, leaf.value.grad());
            }
        }
        drop(hidden);
        if self.settings.with_gradient && !parts.is_empty() {
            let surrogate = Tensor::stack(&parts, 0).sum(Kind::Float);
            if surrogate.requires_grad() {
                self.check_interrupt()?;
                surrogate.f_backward()?;
            }
        }
        Ok(())
    }

    /// Loss of the terms predicted in this piece; gives the rows that predict something with their gradient.
    fn run_head(
        &mut self,
        hidden: &Tensor,
        layout: &PieceLayout,
        segments: &[usize],
    ) -> Result<Option<(Tensor, Tensor)>, TrainError> {
        let mut placed: Vec<PlacedTerm> = segments
            .iter()
            .flat_map(|&segment| {
                self.placed[segment]
                    .iter()
                    .map(move |&(offset, term)| (segment, offset, term))
            })
            .filter_map(|(segment, offset, term)| {
                Some(PlacedTerm {
                    row: layout.row(segment, offset)?,
                    term,
                })
            })
            .collect();
        if placed.is_empty() {
            return Ok(None);
        }
        placed.sort_by_key(|placed| (placed.row, placed.term));
        let PassSettings {
            loss,
            logits_chunk,
            with_gradient,
            ..
        } = self.settings;
        let HeadOutput {
            loss,
            outcomes,
            gradient,
        } = head(
            self.model,
            hidden,
            &placed,
            &self.batch.terms,
            loss,
            logits_chunk,
            with_gradient,
        )?;
        self.output.loss += loss;
        for (placed, outcome) in placed.iter().zip(outcomes) {
            self.output.outcomes[placed.term] = outcome;
        }
        Ok(gradient)
    }

    /// Segments of a piece that lie on the path of a segment in a piece below.
    fn segments_below_attend_to(&self, index: usize) -> Vec<usize> {
        let own: HashSet<usize> = self.pieces.pieces[index].segments.iter().copied().collect();
        let mut keep = HashSet::new();
        let mut below = self.pieces.pieces[index].children.clone();
        while let Some(child) = below.pop() {
            let child = &self.pieces.pieces[child];
            below.extend(&child.children);
            for &segment in &child.segments {
                keep.extend(
                    self.forest
                        .ancestors(segment)
                        .into_iter()
                        .filter(|ancestor| own.contains(ancestor)),
                );
            }
        }
        let mut keep: Vec<usize> = keep.into_iter().collect();
        keep.sort_unstable();
        keep
    }
}
