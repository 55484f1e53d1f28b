//! Attention on the CPU in float32 without copies of keys and values: our kernel reads them in the cache.
//!
//! Long chunks of prompts, whose rows reuse the same keys, go to libtorch's matrix kernels instead.

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use super::attention::{Heads, Segment};
use super::decode_kernel::{PagedRows, Piece, answer_len, attend, merge};
use super::gathered_attention::Run;
use super::kv_cache::{KvCache, slot};
use crate::kernels::team::Team;
use crate::kernels::tensor_view::{Rows, RowsMut};
use crate::kernels::vector_math::InstructionSet;
use crate::model::Attention;

/// Runs of up to this many rows are attended to row by row. Well above the steps of a rollout: when libtorch's threads have worked, they
/// spin for some milliseconds on cores that the engine's own threads need.
const MAX_DIRECT_ROWS: usize = 1024;
/// Pieces that a step is cut into for each thread, so that the threads end together.
const PARTS_PER_THREAD: usize = 4;
/// No piece is cut shorter than this many positions.
const MIN_PIECE: usize = 64;

const VIEWABLE: &str =
    "float32 on the CPU with rows in one piece, since `StepAttention` and `row_contiguous` see to it";

/// The attention of one step.
pub(super) struct DirectAttention<'a> {
    heads: Heads,
    cache: &'a mut KvCache,
    segments: &'a [Segment<'a>],
    rows: Vec<QueryRow>,
    plan: Plan,
    runs: Vec<Run>,
    team: Team,
    set: InstructionSet,
    /// Of the pieces in [`Plan::Pieces`].
    answers: Vec<f32>,
}

/// A row that our kernel attends for.
struct QueryRow {
    row: usize,
    segment: usize,
    kv_len: usize,
}

/// How the rows are spread over the threads.
enum Plan {
    /// Runs of `rows`, each written to its place at once.
    Rows(Vec<Range<usize>>),
    /// Few rows: each row's kv heads apart, and their positions in pieces. In order of row, kv head, position.
    Pieces(Vec<PieceSpec>),
}

struct PieceSpec {
    /// Index into `rows`.
    row: usize,
    kv_head: usize,
    positions: Range<usize>,
}

impl<'a> DirectAttention<'a> {
    /// The cache must be float32 on the CPU, and the kernel support the heads' size.
    pub(super) fn new(heads: Heads, cache: &'a mut KvCache, segments: &'a [Segment<'a>]) -> Self {
        let team = Team::current();
        let mut rows = Vec::new();
        let mut runs = Vec::new();
        for (index, segment) in segments.iter().enumerate() {
            if segment.rows.len() > MAX_DIRECT_ROWS {
                runs.push(Run::new(heads, segment, (Kind::Float, Device::Cpu)));
                continue;
            }
            for (offset, row) in segment.rows.clone().enumerate() {
                rows.push(QueryRow {
                    row,
                    segment: index,
                    kv_len: segment.start + offset + 1,
                });
            }
        }
        let plan = Plan::new(&rows, heads.n_kv_heads as usize, team.n_threads());
        let answers = match &plan {
            Plan::Rows(_) => Vec::new(),
            Plan::Pieces(pieces) => {
                vec![0.0; pieces.len() * answer_len(heads.n_queries() as usize, heads.head_dim as usize)]
            }
        };
        Self {
            heads,
            cache,
            segments,
            rows,
            plan,
            runs,
            team,
            set: InstructionSet::best(),
            answers,
        }
    }

    fn write_cache(&mut self, layer: usize, k: &Rows<'_>, v: &Rows<'_>) {
        for (cache, new) in [(&mut self.cache.keys[layer], k), (&mut self.cache.values[layer], v)] {
            let mut cache = RowsMut::of(cache).expect(VIEWABLE);
            for segment in self.segments {
                for (offset, row) in segment.rows.clone().enumerate() {
                    let slot = slot(segment.blocks, segment.start + offset);
                    cache.row_mut(slot).copy_from_slice(new.row(row));
                }
            }
        }
    }
}

impl Plan {
    fn new(rows: &[QueryRow], n_kv_heads: usize, n_threads: usize) -> Self {
        let n_parts = n_threads * PARTS_PER_THREAD;
        if rows.len() >= n_parts {
            return Self::Rows(evenly(rows, n_parts));
        }
        let n_cuts = n_parts.div_ceil((rows.len() * n_kv_heads).max(1));
        let mut pieces = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            let n_cuts = if n_threads == 1 {
                1
            } else {
                n_cuts.min(row.kv_len / MIN_PIECE).max(1)
            };
            for kv_head in 0..n_kv_heads {
                for cut in 0..n_cuts {
                    let positions = cut * row.kv_len / n_cuts..(cut + 1) * row.kv_len / n_cuts;
                    pieces.push(PieceSpec {
                        row: index,
                        kv_head,
                        positions,
                    });
                }
            }
        }
        Self::Pieces(pieces)
    }
}

/// Cuts rows into runs that attend to about as many positions each.
fn evenly(rows: &[QueryRow], n_parts: usize) -> Vec<Range<usize>> {
    let share = rows.iter().map(|row| row.kv_len).sum::<usize>().div_ceil(n_parts);
    let mut parts = Vec::with_capacity(n_parts);
    let (mut start, mut work) = (0, 0);
    for (index, row) in rows.iter().enumerate() {
        work += row.kv_len;
        if work >= share || index + 1 == rows.len() {
            parts.push(start..index + 1);
            (start, work) = (index + 1, 0);
        }
    }
    parts
}

/// What the kernel reads in one layer.
struct LayerView<'a> {
    queries: Rows<'a>,
    keys: PagedRows<'a>,
    values: PagedRows<'a>,
    segments: &'a [Segment<'a>],
    n_queries: usize,
    head_dim: usize,
    set: InstructionSet,
}

impl LayerView<'_> {
    fn attend(
        &self,
        row: &QueryRow,
        kv_head: usize,
        positions: Range<usize>,
        scores: &mut Vec<f32>,
        answer: &mut [f32],
    ) {
        let group_len = self.n_queries * self.head_dim;
        let piece = Piece {
            queries: &self.queries.row(row.row)[kv_head * group_len..(kv_head + 1) * group_len],
            keys: self.keys,
            values: self.values,
            head_offset: kv_head * self.head_dim,
            blocks: self.segments[row.segment].blocks,
            positions,
        };
        attend(self.set, &piece, self.head_dim, scores, answer);
    }
}

impl Attention for DirectAttention<'_> {
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        let [q, k, v] = [row_contiguous(q), row_contiguous(k), row_contiguous(v)];
        let queries = Rows::of(&q).expect(VIEWABLE);
        self.write_cache(layer, &Rows::of(&k).expect(VIEWABLE), &Rows::of(&v).expect(VIEWABLE));
        let width = (self.heads.n_heads * self.heads.head_dim) as usize;
        let mut out = Tensor::empty([queries.n() as i64, width as i64], (Kind::Float, Device::Cpu));
        let (keys, values) = (&self.cache.keys[layer], &self.cache.values[layer]);
        for run in &self.runs {
            run.attend(self.heads, [&q, &k, &v], [keys, values], &out);
        }
        let mut out_rows = RowsMut::of(&mut out).expect(VIEWABLE);
        let (keys, values) = (Rows::of(keys).expect(VIEWABLE), Rows::of(values).expect(VIEWABLE));
        let (n_queries, head_dim) = (self.heads.n_queries() as usize, self.heads.head_dim as usize);
        let slot_len = self.heads.n_kv_heads as usize * head_dim;
        let view = LayerView {
            queries,
            keys: PagedRows {
                floats: keys.floats(),
                slot_len,
            },
            values: PagedRows {
                floats: values.floats(),
                slot_len,
            },
            segments: self.segments,
            n_queries,
            head_dim,
            set: self.set,
        };
        match &self.plan {
            Plan::Rows(parts) => {
                let mut parts = split_rows(out_rows.floats_mut(), width, &self.rows, parts);
                self.team.run(&mut parts, |part| part.attend(&view, width));
            }
            Plan::Pieces(pieces) => {
                let answers = self.answers.chunks_exact_mut(answer_len(n_queries, head_dim));
                let mut parts: Vec<_> = pieces.iter().zip(answers).collect();
                self.team.run(&mut parts, |(piece, answer)| {
                    let row = &self.rows[piece.row];
                    view.attend(row, piece.kv_head, piece.positions.clone(), &mut Vec::new(), answer);
                });
                let mut first = 0;
                for group in pieces.chunk_by(|a, b| (a.row, a.kv_head) == (b.row, b.kv_head)) {
                    let answer_len = answer_len(n_queries, head_dim);
                    let answers = &self.answers[first * answer_len..(first + group.len()) * answer_len];
                    let out = out_rows.row_mut(self.rows[group[0].row].row);
                    let group_len = n_queries * head_dim;
                    merge(
                        answers,
                        n_queries,
                        head_dim,
                        &mut out[group[0].kv_head * group_len..][..group_len],
                    );
                    first += group.len();
                }
            }
        }
        out
    }
}

/// The tensor itself where the elements of each row lie side by side, else a copy in which they do.
fn row_contiguous(tensor: &Tensor) -> Tensor {
    if Rows::of(tensor).is_some() {
        tensor.shallow_clone()
    } else {
        tensor.to_kind(Kind::Float).contiguous()
    }
}

/// A thread's share of [`Plan::Rows`].
struct RowsPart<'a> {
    rows: &'a [QueryRow],
    /// From the first to the last of `rows`.
    out: &'a mut [f32],
}

impl RowsPart<'_> {
    fn attend(&mut self, view: &LayerView<'_>, width: usize) {
        let first = self.rows.first().map_or(0, |row| row.row);
        let group_len = view.n_queries * view.head_dim;
        let mut scores = Vec::new();
        let mut answer = vec![0.0; answer_len(view.n_queries, view.head_dim)];
        for row in self.rows {
            let out = &mut self.out[(row.row - first) * width..][..width];
            for (kv_head, out) in out.chunks_exact_mut(group_len).enumerate() {
                view.attend(row, kv_head, 0..row.kv_len, &mut scores, &mut answer);
                merge(&answer, view.n_queries, view.head_dim, out);
            }
        }
    }
}

/// Cuts the output where the parts' rows begin and end; rows ascend.
fn split_rows<'a>(
    mut out: &'a mut [f32],
    width: usize,
    rows: &'a [QueryRow],
    parts: &[Range<usize>],
) -> Vec<RowsPart<'a>> {
    let mut split = Vec::with_capacity(parts.len());
    let mut at = 0;
    for part in parts {
        let rows = &rows[part.clone()];
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
            continue;
        };
        let (_, from_first) = out.split_at_mut((first.row - at) * width);
        let (of_part, rest) = from_first.split_at_mut((last.row + 1 - first.row) * width);
        split.push(RowsPart { rows, out: of_part });
        (out, at) = (rest, last.row + 1);
    }
    split
}
